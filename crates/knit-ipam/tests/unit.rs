//! Leases under random requests, compared step by step with a naive model.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AllocError, AttachmentId, LeaseKey, LeaseRequest, Leases, Pool, SubRange, Time};
use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, SandboxId};
use proptest::prelude::*;

/// Two networks with overlapping ranges, both families, with and without a gateway, reserved addresses, a single host, and
/// two sub-ranges of one range.
fn pools() -> Vec<Pool> {
    let pool = |network: &str, range: &str| Pool::with_gateway(network, range.parse().unwrap());
    let sub_range =
        |first: &str, last: &str| SubRange { first: first.parse().unwrap(), last: last.parse().unwrap() };
    let mut holes = pool("red", "10.0.0.16/28");
    holes.reserved = vec!["10.0.0.20/31".parse().unwrap(), "10.0.0.26/32".parse().unwrap()];
    vec![
        pool("red", "10.0.0.0/29"),
        holes,
        pool("blue", "10.0.0.0/28"),
        Pool::new("blue", "10.0.0.0/30".parse().unwrap()),
        pool("red", "fd00::/125"),
        Pool::new("blue", "fd00::4/127".parse().unwrap()),
        Pool::new("blue", "10.0.0.9/32".parse().unwrap()),
        pool("blue", "10.0.0.0/28").within(sub_range("10.0.0.0", "10.0.0.3")),
        pool("blue", "10.0.0.0/28").within(sub_range("10.0.0.3", "10.0.0.5")),
    ]
}

/// All allocatable addresses of a pool, by walking its range.
fn allocatable(pool: &Pool) -> Vec<IpAddr> {
    let all: Vec<IpAddr> = match pool.range {
        IpNet::V4(range) => (range.network().to_bits()..=range.broadcast().to_bits())
            .map(|bits| std::net::Ipv4Addr::from_bits(bits).into())
            .collect(),
        IpNet::V6(range) => (range.network().to_bits()..=range.broadcast().to_bits())
            .map(|bits| std::net::Ipv6Addr::from_bits(bits).into())
            .collect(),
    };
    let last = if pool.range.addr().is_ipv4() && all.len() > 2 { all.len() - 1 } else { all.len() };
    let first = usize::from(all.len() > 2) + usize::from(pool.gateway);
    let kept = |address: &IpAddr| pool.reserved.iter().any(|range| range.contains(address));
    let is_requested = |address: &IpAddr| {
        pool.sub_range.is_none_or(|sub_range| (sub_range.first..=sub_range.last).contains(address))
    };
    let usable = all.get(first..last).unwrap_or_default().iter().copied();
    usable.filter(|address| !kept(address) && is_requested(address)).collect()
}

#[derive(Clone, Debug)]
struct Entry {
    network: String,
    address: IpAddr,
    owner: AttachmentId,
    fixed: bool,
    live: bool,
}

/// The model: one list in the order of the last release, scanned for every request.
#[derive(Default)]
struct Naive(Vec<Entry>);

impl Naive {
    fn allocate(&mut self, pool: &Pool, owner: &AttachmentId, request: LeaseRequest) -> Option<IpAddr> {
        let here = |entry: &&Entry| entry.network == pool.network && pool.range.contains(&entry.address);
        let mine: BTreeSet<_> = self
            .0
            .iter()
            .filter(here)
            .filter(|e| e.live && e.owner == *owner)
            .map(|e| (e.address, e.fixed))
            .collect();
        let allocatable = allocatable(pool);
        // Addresses that the pool no longer covers do not satisfy the request.
        let mine: Vec<_> = mine.into_iter().filter(|(address, _)| allocatable.contains(address)).collect();
        let held = mine.iter().find(|(address, fixed)| match request {
            LeaseRequest::Fixed(requested) => *address == requested,
            _ => !fixed,
        });
        if let Some((address, _)) = held {
            return Some(*address);
        }
        let find =
            |address: IpAddr| self.0.iter().find(|e| e.network == pool.network && e.address == address);
        let free = |address: IpAddr| allocatable.contains(&address) && find(address).is_none_or(|e| !e.live);
        let fresh = || allocatable.iter().copied().find(|address| find(*address).is_none());
        let rested = || self.0.iter().filter(here).map(|e| e.address).find(|address| free(*address));
        let address = match request {
            LeaseRequest::Fixed(address) => free(address).then_some(address),
            LeaseRequest::Sticky(address) if free(address) => Some(address),
            LeaseRequest::Any | LeaseRequest::Sticky(_) => fresh().or_else(rested),
        }?;
        self.0.retain(|e| e.network != pool.network || e.address != address);
        let (network, owner, fixed) =
            (pool.network.clone(), owner.clone(), matches!(request, LeaseRequest::Fixed(_)));
        self.0.push(Entry { network, address, owner, fixed, live: true });
        Some(address)
    }

    /// Releases what matches, in the order of owners, networks and addresses or of networks and addresses alone.
    fn release(&mut self, by_owner: bool, matches: impl Fn(&Entry) -> bool) -> Vec<LeaseKey> {
        let (mut gone, rest): (Vec<_>, Vec<_>) = self.0.drain(..).partition(|e| e.live && matches(e));
        let key = |e: &Entry| LeaseKey { network: e.network.clone(), address: e.address };
        gone.sort_by_key(|e| (by_owner.then(|| e.owner.interface.clone()), key(e)));
        let keys = gone.iter().map(key).collect();
        gone.iter_mut().for_each(|e| e.live = false);
        self.0 = rest.into_iter().chain(gone).collect();
        keys
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        pool: usize,
        owner: AttachmentId,
        cookie: u64,
        choice: Choice,
    },
    Release(AttachmentId),
    ReleaseAll(SandboxId),
    /// Sandboxes whose number has this remainder modulo three are gone.
    Collect(usize),
    /// Serialize and deserialize.
    Reload,
}

#[derive(Clone, Debug)]
enum Choice {
    Any,
    Sticky(u8),
    Fixed(u8),
}

fn owner() -> impl Strategy<Value = AttachmentId> {
    (0..12_u8, prop::sample::select(vec!["eth0", "net1"])).prop_map(|(sandbox, interface)| AttachmentId {
        sandbox: SandboxId(format!("s{sandbox}")),
        interface: IfName::new(interface).unwrap(),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let choice = prop_oneof![
        4 => Just(Choice::Any),
        2 => (0..20_u8).prop_map(Choice::Sticky),
        2 => (0..20_u8).prop_map(Choice::Fixed),
    ];
    prop_oneof![
        8 => (0..pools().len(), owner(), 0..2_u64, choice)
            .prop_map(|(pool, owner, cookie, choice)| Step::Allocate { pool, owner, cookie, choice }),
        4 => owner().prop_map(Step::Release),
        1 => owner().prop_map(|owner| Step::ReleaseAll(owner.sandbox)),
        1 => (0..3_usize).prop_map(Step::Collect),
        1 => Just(Step::Reload),
    ]
}

/// The nth address from the start of a pool's range, possibly beyond its end.
fn nth(pool: &Pool, nth: u8) -> IpAddr {
    match pool.range.network() {
        IpAddr::V4(first) => std::net::Ipv4Addr::from_bits(first.to_bits() + u32::from(nth)).into(),
        IpAddr::V6(first) => std::net::Ipv6Addr::from_bits(first.to_bits() + u128::from(nth)).into(),
    }
}

fn alive(sandbox: &SandboxId, dead: usize) -> bool {
    sandbox.0[1..].parse::<usize>().unwrap() % 3 != dead
}

fn check_capacity(leases: &Leases, naive: &Naive) {
    for pool in pools() {
        let allocatable = allocatable(&pool);
        let live = naive.0.iter().filter(|e| e.live && e.network == pool.network);
        let (used, out_of_pool): (Vec<_>, Vec<_>) = live.partition(|e| allocatable.contains(&e.address));
        let capacity = leases.capacity(&pool);
        assert_eq!(capacity.total, allocatable.len() as u128, "{pool:?}");
        assert_eq!(
            (capacity.used, capacity.out_of_pool),
            (used.len() as u128, out_of_pool.len() as u128),
            "{pool:?}"
        );
        assert_eq!(capacity.free, capacity.total - capacity.used);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The same results as the model at every step: no address is leased twice or reused early, requests are sticky and
    /// idempotent, a reload changes nothing, and the randomly jumping clock has no effect.
    #[test]
    fn leases_behave_like_the_model(steps in prop::collection::vec((step(), any::<u64>()), 1..160)) {
        let pools = pools();
        let (mut leases, mut naive) = (Leases::default(), Naive::default());
        for (step, clock) in steps {
            let now = Time(clock);
            match step {
                Step::Allocate { pool, owner, cookie, choice } => {
                    let pool = &pools[pool];
                    let request = match choice {
                        Choice::Any => LeaseRequest::Any,
                        Choice::Sticky(n) => LeaseRequest::Sticky(nth(pool, n)),
                        Choice::Fixed(n) => LeaseRequest::Fixed(nth(pool, n)),
                    };
                    let instance = SandboxInstance { boot: "b".to_owned(), cookie };
                    let answer = leases.allocate(pool, &owner, &instance, request, now);
                    let expected = naive.allocate(pool, &owner, request);
                    prop_assert_eq!(answer.as_ref().ok().map(IpNet::addr), expected, "{:?} {:?}", pool, request);
                    match answer {
                        Ok(net) => {
                            prop_assert_eq!(net.prefix_len(), pool.range.prefix_len());
                            let lease = leases.get(&pool.network, net.addr()).unwrap();
                            prop_assert!(lease.is_live() && lease.owner == owner && lease.instance == instance);
                        }
                        Err(AllocError::Exhausted { total, .. }) => {
                            prop_assert_eq!(total, allocatable(pool).len() as u128);
                            prop_assert_eq!(leases.capacity(pool).free, 0);
                        }
                        Err(_) => prop_assert!(matches!(request, LeaseRequest::Fixed(_))),
                    }
                }
                Step::Release(owner) => {
                    let released = leases.release(&owner, now);
                    prop_assert_eq!(released, naive.release(true, |e| e.owner == owner));
                }
                Step::ReleaseAll(sandbox) => {
                    let released = leases.release_all(&sandbox, now);
                    prop_assert_eq!(released, naive.release(true, |e| e.owner.sandbox == sandbox));
                }
                Step::Collect(dead) => {
                    let freed = leases.garbage_collect(|lease| alive(&lease.owner.sandbox, dead), now);
                    prop_assert_eq!(freed, naive.release(false, |e| !alive(&e.owner.sandbox, dead)));
                }
                Step::Reload => {
                    let text = serde_json::to_string(&leases).unwrap();
                    let back: Leases = serde_json::from_str(&text).unwrap();
                    prop_assert_eq!(&back, &leases);
                    leases = back;
                }
            }
            let live = leases.iter().filter(|(_, _, lease)| lease.is_live());
            let live: BTreeSet<_> = live.map(|(network, address, _)| (network.to_owned(), address)).collect();
            let expected: Vec<_> = naive.0.iter().filter(|e| e.live).map(|e| (e.network.clone(), e.address)).collect();
            prop_assert_eq!(live.len(), expected.len());
            prop_assert_eq!(live, expected.into_iter().collect::<BTreeSet<_>>());
            check_capacity(&leases, &naive);
        }
    }
}
