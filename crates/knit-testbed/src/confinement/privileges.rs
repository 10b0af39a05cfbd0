//! The capabilities of a thread, as runc sets them for a container whose user is root.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::deployment::Container;

/// Reduces the capabilities of this thread, and of the programs that it starts, to those of the container.
pub(super) fn reduce(container: &Container) -> io::Result<()> {
    let granted = container.capabilities;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // An error means that this kernel has no such capability.
        let is_bounding = capability_is_in_bounding_set(capability).unwrap_or_default();
        if is_bounding && !granted.contains(capability) {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    clear_ambient_capability_set()?;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: granted, permitted: granted, inheritable })?;
    if container.no_new_privileges {
        set_no_new_privs(true)?;
    }
    Ok(())
}
