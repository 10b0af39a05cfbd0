use super::*;

fn peer(ranges: &[&str], endpoint: Option<&str>, keepalive: u16) -> WgPeer {
    WgPeer {
        preshared_key: Some(SecretKey::none()),
        endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
        allowed: Some(ranges.iter().map(|range| range.parse().unwrap()).collect()),
        keepalive: Some(keepalive),
    }
}

fn key(number: u8) -> PublicKey {
    PublicKey::from_bytes([number; 32])
}

#[test]
fn what_is_written_of_a_peer_is_read_back() {
    let preshared = PrivateKey::from_bytes([9; 32]);
    for endpoint in ["10.0.0.2:51820", "[fd00::2]:51821"] {
        let mut written = peer(&["10.1.0.0/16", "fd01::/48"], Some(endpoint), 25);
        written.preshared_key = Some(SecretKey::of(preshared.public()));
        let mut message = Message::new(0, 0, "test");
        message.put_u16(DEVICE_LISTEN_PORT, 7).put_u32(DEVICE_FWMARK, 8);
        message.nest(DEVICE_PEERS, |list| {
            Order { key: key(1), flags: 0, peer: written.clone() }.write(Some(&preshared), list);
        });
        let mut keys = Vec::new();
        let read = read_device(Attributes::new(&message.as_bytes()[16..]), &mut keys);
        assert_eq!((read.listen_port, read.fwmark), (Some(7), Some(8)));
        assert_eq!(read.peers.unwrap(), Peers::from([(key(1), written)]));
        assert!(keys == [preshared.clone()]);
    }
}

#[test]
fn only_peers_that_change_are_mentioned_and_only_what_changes_of_them() {
    let same = peer(&["10.1.0.0/16"], Some("10.0.0.1:1"), 0);
    let before = Peers::from([
        (key(1), same.clone()),
        (key(2), peer(&["10.2.0.0/16"], Some("10.0.0.2:1"), 0)),
        (key(3), peer(&["10.3.0.0/16"], None, 0)),
        (key(4), peer(&[], None, 0)),
    ]);
    let after = Peers::from([
        (key(1), WgPeer { endpoint: None, ..same }),
        (key(2), peer(&["10.2.0.0/16", "10.22.0.0/16"], Some("10.0.0.2:1"), 0)),
        (key(3), peer(&["10.33.0.0/16"], None, 5)),
        (key(5), peer(&[], None, 0)),
    ]);
    let orders = orders_for(&before, &after);
    let nothing = WgPeer::default;
    let ranges = |range: &str| Some(BTreeSet::from([range.parse().unwrap()]));
    let expected = [
        Order { key: key(4), flags: PEER_REMOVE, peer: nothing() },
        Order { key: key(2), flags: 0, peer: WgPeer { allowed: ranges("10.22.0.0/16"), ..nothing() } },
        Order {
            key: key(3),
            flags: PEER_REPLACE_ALLOWED,
            peer: WgPeer { allowed: ranges("10.33.0.0/16"), keepalive: Some(5), ..nothing() },
        },
        Order { key: key(5), flags: PEER_REPLACE_ALLOWED, peer: peer(&[], None, 0) },
    ];
    assert_eq!(orders, expected);
}

#[test]
fn an_address_is_forgotten_with_the_peer_and_given_again_without() {
    let before = Peers::from([(key(1), peer(&[], Some("10.0.0.1:1"), 0))]);
    let after = Peers::from([(key(1), peer(&[], Some("0.0.0.0:0"), 0))]);
    let orders = orders_for(&before, &after);
    assert_eq!(
        orders.iter().map(|order| order.flags).collect::<Vec<_>>(),
        [PEER_REMOVE, PEER_REPLACE_ALLOWED]
    );
}
