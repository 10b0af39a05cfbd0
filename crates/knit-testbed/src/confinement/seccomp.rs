//! The seccomp filter that containerd installs for `RuntimeDefault`, which depends on the capabilities of the container.

mod profile;

use std::collections::BTreeMap;
use std::io;

use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Rules by the number of the system call: none means that all arguments match.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The flags of `clone` that need `CAP_SYS_ADMIN`: new namespaces of every kind.
const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;

/// Installs the filter for this thread and the programs that it starts.
pub(super) fn install(capabilities: CapabilitySet) -> io::Result<()> {
    for program in programs(capabilities).map_err(io::Error::other)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn programs(capabilities: CapabilitySet) -> Result<Vec<BpfProgram>, Error> {
    let refuse = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
    let is_admin = capabilities.contains(CapabilitySet::SYS_ADMIN);
    let mut rules = rules(capabilities)?;
    if is_admin {
        return Ok(vec![program(rules, refuse(libc::EPERM), SeccompAction::Allow)?]);
    }
    // Its arguments cannot be filtered. libc then uses clone. Of two filters, the one that refuses decides.
    rules.insert(libc::SYS_clone3, Vec::new());
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let clone3 = program(clone3, SeccompAction::Allow, refuse(libc::ENOSYS))?;
    Ok(vec![clone3, program(rules, refuse(libc::EPERM), SeccompAction::Allow)?])
}

fn program(rules: Rules, other: SeccompAction, matching: SeccompAction) -> Result<BpfProgram, Error> {
    let architecture = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, other, matching, architecture)?.try_into()?)
}

fn rules(capabilities: CapabilitySet) -> Result<Rules, Error> {
    let unconditional = profile::ALLOWED.iter().chain(profile::ALLOWED_HERE).copied();
    let mut rules: Rules = unconditional
        .chain(profile::ALLOWED_NUMBERS.into_iter().flatten())
        .map(|number| (number, Vec::new()))
        .collect();
    let families =
        profile::SOCKET_FAMILIES.filter(|family| !profile::EXCLUDED_SOCKET_FAMILIES.contains(family));
    let families = families.map(|family| first_argument(SeccompCmpOp::Eq, family.unsigned_abs().into()));
    rules.insert(libc::SYS_socket, families.collect::<Result<_, _>>()?);
    let personalities = profile::PERSONALITIES.map(|value| first_argument(SeccompCmpOp::Eq, value));
    rules.insert(libc::SYS_personality, personalities.into_iter().collect::<Result<_, _>>()?);
    let without_namespaces = SeccompCmpOp::MaskedEq(NEW_NAMESPACES.unsigned_abs().into());
    rules.insert(libc::SYS_clone, vec![first_argument(without_namespaces, 0)?]);
    for (name, allowed) in profile::ALLOWED_BY_CAPABILITY {
        let capability = CapabilitySet::from_name(name).expect("a capability of the profile");
        if capabilities.contains(capability) {
            rules.extend(allowed.iter().map(|number| (*number, Vec::new())));
        }
    }
    Ok(rules)
}

fn first_argument(operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, Error> {
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, operator, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_follows_the_capabilities() {
        let admin = rules(CapabilitySet::SYS_ADMIN).unwrap();
        let none = rules(CapabilitySet::empty()).unwrap();
        for number in [libc::SYS_setns, libc::SYS_mount, libc::SYS_bpf] {
            assert!(admin.contains_key(&number) && !none.contains_key(&number), "{number}");
        }
        assert_eq!((admin[&libc::SYS_clone].len(), none[&libc::SYS_clone].len()), (0, 1));
        for number in [libc::SYS_add_key, libc::SYS_kexec_load, libc::SYS_userfaultfd, libc::SYS_init_module]
        {
            assert!(!admin.contains_key(&number), "{number}");
        }
        assert_eq!(programs(CapabilitySet::SYS_ADMIN).unwrap().len(), 1);
        assert_eq!(programs(CapabilitySet::empty()).unwrap().len(), 2);
    }
}
