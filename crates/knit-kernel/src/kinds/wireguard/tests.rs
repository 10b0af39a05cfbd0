use super::*;

fn peer(ranges: &[&str], endpoint: Option<&str>, keepalive: u16) -> WireGuardPeer {
    WireGuardPeer {
        preshared_key: Some(SecretKey::none()),
        endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
        allowed_ips: Some(ranges.iter().map(|range| range.parse().unwrap()).collect()),
        keepalive: Some(keepalive),
    }
}

fn key(number: u8) -> PublicKey {
    PublicKey::from_bytes([number; 32])
}

#[test]
fn a_peer_round_trips() {
    let preshared = PrivateKey::from_bytes([9; 32]);
    for endpoint in ["10.0.0.2:51820", "[fd00::2]:51821"] {
        let mut written = peer(&["10.1.0.0/16", "fd01::/48"], Some(endpoint), 25);
        written.preshared_key = Some(SecretKey::with_public_key(preshared.public()));
        let mut message = Message::new(0, 0, "test");
        message.put_u16(DEVICE_LISTEN_PORT, 7).put_u32(DEVICE_FWMARK, 8);
        message.nest(DEVICE_PEERS, |list| {
            PeerUpdate { key: key(1), flags: 0, peer: written.clone() }.write(Some(&preshared), list);
        });
        let mut keys = Vec::new();
        let read = read_device(Attributes::new(&message.as_bytes()[16..]), &mut keys);
        assert_eq!((read.listen_port, read.fwmark), (Some(7), Some(8)));
        assert_eq!(read.peers.unwrap(), Peers::from([(key(1), written)]));
        assert!(keys == [preshared.clone()]);
    }
}

#[test]
fn updates_contain_only_changed_fields_of_changed_peers() {
    let same = peer(&["10.1.0.0/16"], Some("10.0.0.1:1"), 0);
    let before = Peers::from([
        (key(1), same.clone()),
        (key(2), peer(&["10.2.0.0/16"], Some("10.0.0.2:1"), 0)),
        (key(3), peer(&["10.3.0.0/16"], None, 0)),
        (key(4), peer(&[], None, 0)),
    ]);
    let after = Peers::from([
        (key(1), WireGuardPeer { endpoint: None, ..same }),
        (key(2), peer(&["10.2.0.0/16", "10.22.0.0/16"], Some("10.0.0.2:1"), 0)),
        (key(3), peer(&["10.33.0.0/16"], None, 5)),
        (key(5), peer(&[], None, 0)),
    ]);
    let updates = peer_updates(&before, &after);
    let nothing = WireGuardPeer::default;
    let ranges = |range: &str| Some(BTreeSet::from([range.parse().unwrap()]));
    let expected = [
        PeerUpdate { key: key(4), flags: PEER_REMOVE, peer: nothing() },
        PeerUpdate {
            key: key(2),
            flags: 0,
            peer: WireGuardPeer { allowed_ips: ranges("10.22.0.0/16"), ..nothing() },
        },
        PeerUpdate {
            key: key(3),
            flags: PEER_REPLACE_ALLOWED,
            peer: WireGuardPeer { allowed_ips: ranges("10.33.0.0/16"), keepalive: Some(5), ..nothing() },
        },
        PeerUpdate { key: key(5), flags: PEER_REPLACE_ALLOWED, peer: peer(&[], None, 0) },
    ];
    assert_eq!(updates, expected);
}

#[test]
fn removing_an_endpoint_recreates_the_peer() {
    let before = Peers::from([(key(1), peer(&[], Some("10.0.0.1:1"), 0))]);
    let after = Peers::from([(key(1), peer(&[], Some("0.0.0.0:0"), 0))]);
    let updates = peer_updates(&before, &after);
    assert_eq!(
        updates.iter().map(|update| update.flags).collect::<Vec<_>>(),
        [PEER_REMOVE, PEER_REPLACE_ALLOWED]
    );
}
