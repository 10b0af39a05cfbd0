//! The list of link kinds: the only list that a new kind is added to.

/// Calls a macro with every link kind, as `module Type` pairs separated by commas.
///
/// Each crate has one file per kind with the module's name: `knit-model/src/link`, `knit-kernel/src/kinds` and
/// `knit-crds/src/kinds`. Everything that covers all kinds derives from this list, in its order.
#[macro_export]
macro_rules! link_kinds {
    ($callback:ident) => {
        $callback! {
            veth Veth,
            bridge Bridge,
            macvlan Macvlan,
            macvtap Macvtap,
            ipvlan Ipvlan,
            vlan Vlan,
            host_device HostDevice,
            dummy Dummy,
            tap Tap,
            vrf Vrf,
            bond Bond,
            vxlan Vxlan,
            geneve Geneve,
            gre Gre,
            iptunnel IpTunnel,
            wireguard WireGuard,
        }
    };
}
