//! Behaviour of leases, one property at a time. The randomized comparison with a naive model is in `tests/unit.rs`.

use super::*;
use crate::interval_set::LOOKUPS;

fn pool(range: &str) -> Pool {
    Pool::with_gateway("pcbr0", range.parse().unwrap())
}

fn owner(number: u32) -> AttachmentId {
    AttachmentId {
        sandbox: SandboxId(format!("s{number}")),
        interface: IfName::new("pc0").expect("a valid name"),
    }
}

fn instance(cookie: u64) -> SandboxInstance {
    SandboxInstance { boot: "b".to_owned(), cookie }
}

fn allocate(leases: &mut Leases, pool: &Pool, number: u32, request: LeaseRequest) -> Result<String, String> {
    let answer = leases.allocate(pool, &owner(number), &instance(1), request, Time(10));
    answer.map(|net| net.to_string()).map_err(|error| error.to_string())
}

fn any(leases: &mut Leases, pool: &Pool, number: u32) -> String {
    allocate(leases, pool, number, LeaseRequest::Any).unwrap()
}

#[test]
fn allocation_starts_after_the_gateway() {
    let (mut leases, pool) = (Leases::default(), pool("192.168.100.0/24"));
    assert_eq!(any(&mut leases, &pool, 1), "192.168.100.2/24");
    assert_eq!(any(&mut leases, &pool, 2), "192.168.100.3/24");
    assert_eq!(any(&mut leases, &self::pool("fd00:7::/64"), 1), "fd00:7::2/64");
}

#[test]
fn allocation_is_idempotent_and_a_new_instance_takes_the_lease_over() {
    let (mut leases, pool) = (Leases::default(), pool("192.168.100.0/24"));
    any(&mut leases, &pool, 1);
    assert_eq!(any(&mut leases, &pool, 1), "192.168.100.2/24");
    let address = "192.168.100.2".parse().unwrap();
    assert_eq!(leases.get("pcbr0", address).unwrap().since, Time(10));
    leases.allocate(&pool, &owner(1), &instance(2), LeaseRequest::Any, Time(20)).unwrap();
    let lease = leases.get("pcbr0", address).unwrap();
    assert_eq!((lease.instance.cookie, lease.since), (2, Time(20)));
    assert_eq!(leases.iter().count(), 1);
}

#[test]
fn two_networks_may_allocate_the_same_address() {
    let mut leases = Leases::default();
    let red = Pool::with_gateway("red", "10.0.0.0/24".parse().unwrap());
    let blue = Pool::with_gateway("blue", "10.0.0.0/24".parse().unwrap());
    assert_eq!(any(&mut leases, &red, 1), "10.0.0.2/24");
    assert_eq!(any(&mut leases, &blue, 2), "10.0.0.2/24");
    leases.release(&owner(1), Time(1));
    assert!(leases.get("blue", "10.0.0.2".parse().unwrap()).unwrap().is_live());
}

#[test]
fn a_released_address_is_reused_last() {
    let (mut leases, pool) = (Leases::default(), pool("10.0.0.0/29"));
    for number in 1..=3 {
        any(&mut leases, &pool, number);
    }
    // The clock goes back between the two: the order of the calls counts.
    leases.release(&owner(2), Time(900));
    leases.release(&owner(1), Time(100));
    assert_eq!(any(&mut leases, &pool, 4), "10.0.0.5/29");
    assert_eq!(any(&mut leases, &pool, 5), "10.0.0.6/29");
    assert_eq!(any(&mut leases, &pool, 6), "10.0.0.3/29");
    assert_eq!(any(&mut leases, &pool, 7), "10.0.0.2/29");
    assert_eq!(
        allocate(&mut leases, &pool, 8, LeaseRequest::Any).unwrap_err(),
        "network pcbr0 range 10.0.0.0/29 is exhausted: all 5 addresses are in use"
    );
}

#[test]
fn a_pool_without_allocatable_addresses_is_exhausted() {
    let mut leases = Leases::default();
    let error = allocate(&mut leases, &pool("10.0.0.7/32"), 1, LeaseRequest::Any).unwrap_err();
    assert_eq!(error, "network pcbr0 range 10.0.0.7/32 has no allocatable address: all are reserved");
    any(&mut leases, &pool("10.0.0.0/31"), 1);
    let error = allocate(&mut leases, &pool("10.0.0.0/31"), 2, LeaseRequest::Any).unwrap_err();
    assert_eq!(error, "network pcbr0 range 10.0.0.0/31 is exhausted: its only address is in use");
}

#[test]
fn a_sticky_request_gets_its_address_if_it_is_free() {
    let (mut leases, pool) = (Leases::default(), pool("10.0.0.0/24"));
    for number in 1..=3 {
        any(&mut leases, &pool, number);
    }
    leases.release(&owner(2), Time(1));
    let back = LeaseRequest::Sticky("10.0.0.3".parse().unwrap());
    assert_eq!(allocate(&mut leases, &pool, 2, back).unwrap(), "10.0.0.3/24");
    // Leased, the gateway, or of another range: any other address is allocated.
    assert_eq!(allocate(&mut leases, &pool, 4, back).unwrap(), "10.0.0.5/24");
    for (number, previous) in [(5, "10.0.0.1"), (6, "172.16.0.9"), (7, "fd00::9")] {
        let request = LeaseRequest::Sticky(previous.parse().unwrap());
        assert_eq!(
            allocate(&mut leases, &pool, number, request).unwrap(),
            format!("10.0.0.{}/24", number + 1)
        );
    }
}

#[test]
fn the_last_address_of_an_attachment_is_known_until_it_is_reused() {
    let (mut leases, pool) = (Leases::default(), pool("10.0.0.0/30"));
    let before =
        |leases: &Leases| leases.last_released_by(&pool, &owner(1)).map(|address| address.to_string());
    any(&mut leases, &pool, 1);
    assert_eq!(before(&leases), None, "still leased");
    leases.release(&owner(1), Time(1));
    assert_eq!(before(&leases).as_deref(), Some("10.0.0.2"));
    let read: Leases = serde_json::from_str(&serde_json::to_string(&leases).unwrap()).unwrap();
    assert_eq!((before(&read), &read), (before(&leases), &leases));
    assert_eq!(leases.last_released_by(&self::pool("10.9.0.0/24"), &owner(1)), None, "of another range");
    any(&mut leases, &pool, 2);
    assert_eq!(before(&leases), None, "leased to another");
    leases.release(&owner(2), Time(1));
    leases.forget_network("pcbr0");
    assert_eq!(leases, Leases::default());
}

#[test]
fn a_fixed_address_is_allocated_in_addition_or_rejected_with_a_reason() {
    let (mut leases, pool) = (Leases::default(), pool("10.0.0.0/24"));
    let fixed = |address: &str| LeaseRequest::Fixed(address.parse().unwrap());
    assert_eq!(allocate(&mut leases, &pool, 1, fixed("10.0.0.2")).unwrap(), "10.0.0.2/24");
    assert_eq!(any(&mut leases, &pool, 1), "10.0.0.3/24");
    assert_eq!(any(&mut leases, &pool, 1), "10.0.0.3/24");
    assert_eq!(allocate(&mut leases, &pool, 1, fixed("10.0.0.2")).unwrap(), "10.0.0.2/24");
    let mut error = |address: &str| allocate(&mut leases, &pool, 2, fixed(address)).unwrap_err();
    assert_eq!(error("10.0.0.2"), "network pcbr0: 10.0.0.2 is in use by pc0 of sandbox s1");
    assert_eq!(
        error("10.0.0.1"),
        "network pcbr0: 10.0.0.1 cannot be allocated: it is the gateway address of the bridge"
    );
    assert_eq!(error("10.0.1.1"), "network pcbr0: 10.0.1.1 is not in the range 10.0.0.0/24");
    assert_eq!(leases.release(&owner(1), Time(1)).len(), 2);
}

#[test]
fn reserved_addresses_are_skipped() {
    let (mut leases, mut pool) = (Leases::default(), pool("10.0.0.0/28"));
    pool.reserved = vec!["10.0.0.2/31".parse().unwrap(), "10.0.0.5/32".parse().unwrap()];
    assert_eq!(any(&mut leases, &pool, 1), "10.0.0.4/28");
    assert_eq!(any(&mut leases, &pool, 2), "10.0.0.6/28");
}

#[test]
fn releasing_a_sandbox_releases_only_its_leases() {
    let mut leases = Leases::default();
    let (four, six) = (pool("10.0.0.0/24"), pool("fd00::/64"));
    for number in [1, 10] {
        any(&mut leases, &four, number);
        any(&mut leases, &six, number);
    }
    assert_eq!(leases.release_all(&owner(1).sandbox, Time(5)).len(), 2);
    assert_eq!(leases.release_all(&owner(1).sandbox, Time(6)), vec![]);
    assert_eq!(leases.held_by(&owner(10)).count(), 2);
    assert_eq!(leases.capacity(&four).used, 1);
}

#[test]
fn leases_do_not_expire_when_the_clock_jumps() {
    let (mut leases, pool) = (Leases::default(), pool("10.0.0.0/30"));
    any(&mut leases, &pool, 1);
    for now in [0, u64::MAX] {
        assert_eq!(leases.garbage_collect(|_| true, Time(now)), vec![]);
        let answer = leases.allocate(&pool, &owner(2), &instance(1), LeaseRequest::Any, Time(now));
        assert!(matches!(answer, Err(AllocError::Exhausted { .. })));
    }
}

#[test]
fn garbage_collection_releases_only_stale_leases() {
    let (mut leases, pool) = (Leases::default(), pool("10.0.0.0/24"));
    for number in 1..=4 {
        any(&mut leases, &pool, number);
    }
    let freed = leases.garbage_collect(|lease| lease.owner.sandbox.0 != "s3", Time(7));
    assert_eq!(freed.iter().map(LeaseKey::to_string).collect::<Vec<_>>(), ["10.0.0.4 of network pcbr0"]);
    assert_eq!(leases.capacity(&pool).used, 3);
}

#[test]
fn leases_outside_a_shrunk_pool_are_kept_and_counted() {
    let (mut leases, wide) = (Leases::default(), pool("10.0.0.0/28"));
    for number in 1..=8 {
        any(&mut leases, &wide, number);
    }
    let narrow = pool("10.0.0.0/29");
    assert_eq!(leases.capacity(&narrow), Capacity { total: 5, used: 5, free: 0, out_of_pool: 3 });
    assert!(allocate(&mut leases, &narrow, 9, LeaseRequest::Any).is_err());
    assert_eq!(leases.capacity_of("pcbr0", &[]), Capacity { total: 0, used: 0, free: 0, out_of_pool: 8 });
    leases.forget_network("pcbr0");
    assert_eq!(leases.iter().count(), 8);
}

#[test]
fn leases_round_trip_through_json() {
    let mut leases = Leases::default();
    let (four, six) = (pool("10.0.0.0/29"), pool("fd00::/126"));
    for number in 1..=2 {
        any(&mut leases, &four, number);
        any(&mut leases, &six, number);
    }
    leases.release(&owner(1), Time(77));
    let text = serde_json::to_value(&leases).unwrap();
    assert_eq!(
        text["pcbr0"]["10.0.0.2"],
        serde_json::json!({
            "owner": {"sandbox": "s1", "interface": "pc0"},
            "instance": {"boot": "b", "cookie": 1},
            "since": 10,
            "released": {"at": 77, "order": 0},
        })
    );
    let mut back: Leases = serde_json::from_value(text).unwrap();
    assert_eq!(back, leases);
    assert_eq!(any(&mut back, &four, 3), "10.0.0.4/29");
}

#[test]
fn released_leases_are_bounded() {
    let (mut leases, pool) = (Leases::default(), pool("fd00::/48"));
    let mut seen = Vec::new();
    for number in 0..3 * MAX_RELEASED as u32 {
        seen.push(any(&mut leases, &pool, number));
        leases.release(&owner(number), Time(1));
    }
    assert_eq!(leases.iter().count(), MAX_RELEASED);
    // An address is reused only after that many other releases.
    for (index, address) in seen.iter().enumerate() {
        assert!(!seen[index.saturating_sub(MAX_RELEASED)..index].contains(address), "{address} at {index}");
    }
    leases.forget_network("pcbr0");
    assert_eq!(leases, Leases::default());
}

#[test]
fn allocation_cost_does_not_depend_on_utilization() {
    let (mut leases, pool) = (Leases::default(), pool("10.1.0.0/16"));
    let total = u32::try_from(pool.total()).unwrap();
    for number in 0..total {
        let before = LOOKUPS.get();
        any(&mut leases, &pool, number);
        let cost = LOOKUPS.get() - before;
        assert!(cost <= 8, "lease {number} of {total} took {cost} lookups");
    }
    for freed in [1, total / 2, total - 1] {
        leases.release(&owner(freed), Time(1));
        let before = LOOKUPS.get();
        any(&mut leases, &pool, total + freed);
        assert!(LOOKUPS.get() - before <= 8);
    }
    let before = LOOKUPS.get();
    allocate(&mut leases, &pool, 3 * total, LeaseRequest::Any).unwrap_err();
    assert!(LOOKUPS.get() - before <= 8);
}

/// No decision depends on the clock: the same addresses are allocated and released in the same order.
#[test]
fn a_jumping_clock_changes_no_allocation() {
    let pool = pool("192.168.100.0/29");
    let clocks: [fn(u64) -> u64; 4] =
        [|now| now, |_| 0, |now| u64::MAX - now, |now| now % 3 * (u64::MAX / 4)];
    let histories = clocks.map(|clock| {
        let (mut leases, mut given) = (Leases::default(), Vec::new());
        for now in 0..40_u64 {
            let number = u32::try_from(now % 7).unwrap();
            if now % 3 == 2 {
                leases.release(&owner(number), Time(clock(now)));
            } else {
                let answer =
                    leases.allocate(&pool, &owner(number), &instance(1), LeaseRequest::Any, Time(clock(now)));
                given.push(answer.map(|net| net.to_string()).map_err(|error| error.to_string()));
            }
            let live: Vec<_> = leases.iter().filter(|(_, _, lease)| lease.is_live()).collect();
            let mut owners: Vec<_> = live.iter().map(|(_, address, _)| *address).collect();
            owners.sort();
            owners.dedup();
            assert_eq!(owners.len(), live.len(), "an address has one live lease");
            given.push(Ok(live.len().to_string()));
        }
        given
    });
    for history in &histories[1..] {
        assert_eq!(*history, histories[0]);
    }
}

#[test]
fn pools_are_tried_in_order_after_held_and_previous_addresses() {
    let mut leases = Leases::default();
    let sub_range = |first: &str, last: &str| {
        let (first, last) = (first.parse().unwrap(), last.parse().unwrap());
        pool("10.0.0.0/24").within(crate::pool::SubRange { first, last })
    };
    let pools = [sub_range("10.0.0.9", "10.0.0.9"), sub_range("10.0.0.20", "10.0.0.21")];
    let allocate = |leases: &mut Leases, number: u32, request: LeaseRequest| {
        let given = leases.allocate_in_order(&pools, &owner(number), &instance(1), request, Time(10));
        given.map(|net| net.to_string()).map_err(|why| why.to_string())
    };
    for (number, expected) in [(1, "10.0.0.9/24"), (2, "10.0.0.20/24"), (3, "10.0.0.21/24")] {
        assert_eq!(allocate(&mut leases, number, LeaseRequest::Any).unwrap(), expected);
    }
    let ranges = "10.0.0.9-10.0.0.9 of 10.0.0.0/24, 10.0.0.20-10.0.0.21 of 10.0.0.0/24";
    let message = format!("network pcbr0 range {ranges} is exhausted: all 3 addresses are in use");
    assert_eq!(allocate(&mut leases, 4, LeaseRequest::Any).unwrap_err(), message);
    // The first sub-range has a free address again: holders of the second keep theirs.
    leases.release(&owner(1), Time(11));
    assert_eq!(allocate(&mut leases, 2, LeaseRequest::Any).unwrap(), "10.0.0.20/24");
    let had = "10.0.0.21".parse().unwrap();
    leases.release(&owner(3), Time(12));
    assert_eq!(leases.last_released_by(&pools[1], &owner(3)), Some(had));
    assert_eq!(leases.last_released_by(&pools[0], &owner(3)), None);
    assert_eq!(allocate(&mut leases, 3, LeaseRequest::Sticky(had)).unwrap(), "10.0.0.21/24");
    assert_eq!(allocate(&mut leases, 4, LeaseRequest::Any).unwrap(), "10.0.0.9/24");
    // Each sub-range of a range may allocate an address to the same attachment.
    let other = sub_range("10.0.0.30", "10.0.0.31");
    assert_eq!(any(&mut leases, &other, 2), "10.0.0.30/24");
    assert_eq!(any(&mut leases, &other, 2), "10.0.0.30/24");
    assert_eq!(leases.held_by(&owner(2)).count(), 2);
}

#[test]
fn a_shared_range_allocates_from_the_blocks_of_the_node_and_keeps_leases() {
    let mut leases = Leases::default();
    let none = pool("10.0.0.0/24").with_blocks(Vec::new());
    let first = pool("10.0.0.0/24").with_blocks(vec!["10.0.0.0/28".parse().unwrap()]);
    let second = pool("10.0.0.0/24").with_blocks(vec!["10.0.0.16/28".parse().unwrap()]);
    assert!(allocate(&mut leases, &none, 1, LeaseRequest::Any).is_err());
    assert_eq!(any(&mut leases, &first, 1), "10.0.0.2/24");
    assert_eq!(any(&mut leases, &second, 2), "10.0.0.16/24");
    // The block is lost: live leases stay.
    assert_eq!(any(&mut leases, &second, 1), "10.0.0.2/24");
    for number in 3..16 {
        assert_eq!(any(&mut leases, &first, number), format!("10.0.0.{number}/24"));
    }
    assert!(allocate(&mut leases, &first, 99, LeaseRequest::Any).unwrap_err().contains("all 14 addresses"));
    assert_eq!(leases.live_in(&first.network, "10.0.0.0/28".parse().unwrap()), 14);
    assert_eq!(leases.live_in(&first.network, "10.0.0.32/28".parse().unwrap()), 0);
    // A released address of a lost block is not reused: it belongs to another node by now.
    leases.release(&owner(1), Time(20));
    let last = leases.last_released_by(&second, &owner(1)).unwrap();
    assert_eq!(allocate(&mut leases, &second, 1, LeaseRequest::Sticky(last)).unwrap(), "10.0.0.17/24");
}
