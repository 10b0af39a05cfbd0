// SPDX-License-Identifier: Apache-2.0
//
// Two programs that hand TCP packets on past the bridge, the routes and the packet filter. Every other packet goes on as if they
// were not there.
//
// `redirect` is at the host's end of a pod's pair. What the pod sends to another one of the node goes straight into that pod;
// what it sends to a pod of another node, by a link that both nodes are on, straight to that link. `arrive` is at such a link: what
// comes from a pod of that node to one of this node goes straight into the pod.
//
// What is taken has to be from a pod's own hardware address and address, to the hardware address and the address of another pod
// (or, on its way to another node, of the bridge). And nobody may have translated the connection on this node: the packet filter
// sees nothing of what is taken, so an answer to a translated packet would never be translated back. Therefore a connection is
// known from its first packet on:
//
// - a SYN to a pod's own address opens it (OPENING, with its sequence number);
// - the SYN+ACK that answers this very SYN makes it OPEN; only from then on packets of the other side are taken, but for the
//   RST that refuses this very SYN;
// - a SYN+ACK that answers another one (whose destination was translated on its way) makes the pair of ports FOREIGN: neither
//   side's packets are taken, and a SYN goes the long way too, where the packet filter gives it another port if need be.
//
// A pod has one connection for a pair of addresses and ports, so its SYN+ACK says whose they are, whatever is known from before.
//
// No packet can go round in circles: what comes from another node goes into a pod or the long way. So hop limits stay as they are.

// A few definitions of the kernel's interface to programs (linux/bpf.h, linux/pkt_cls.h), so that no headers are needed.
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	__u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end;
};

struct bpf_map_def {
	__u32 type, key_size, value_size, max_entries, map_flags, id, pinning;
};

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_LRU_HASH = 9, MAP_LPM_TRIE = 11 };
enum { NO_PREALLOC = 1 };
enum { BY_NAME = 1 };
enum { GO_ON = -1 };
enum { TO_THIS_HOST = 0 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static long (*pull_data)(struct __sk_buff *packet, __u32 length) = (void *)39;
static long (*redirect_neigh)(__u32 link, const void *hop, int length, __u64 flags) = (void *)152;
static long (*redirect_peer)(__u32 link, __u64 flags) = (void *)155;

#define SECTION(name) __attribute__((section(name), used))
#define ALWAYS static inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NET16(number) __builtin_bswap16(number)
#define NET32(number) __builtin_bswap32(number)
#else
#define NET16(number) (number)
#define NET32(number) (number)
#endif

struct address {
	__u32 words[4]; // an IPv4 address is mapped into IPv6
};

// Where a pod is.
struct port {
	__u32 link; // the host's end of its pair
	__u8 mac[8]; // the pod's end, then two zeros
};

// Addresses that begin with the same bits.
struct range {
	__u32 bits;
	struct address address;
};

// The next hop on the way to a range, as the kernel wants it.
struct hop {
	__u32 family; // 2: IPv4, 10: IPv6
	__u32 words[4]; // an IPv4 address is the first
};

// The way to pods of another node.
struct way {
	__u32 link; // of this host
	struct hop hop;
};

struct flow {
	struct address from, to; // `from` opened it
	__u16 from_port, to_port;
};

enum state { OPENING = 1, OPEN = 2, FOREIGN = 3 };

struct known {
	__u32 state;
	__u32 sequence; // of the SYN
};

struct bpf_map_def SECTION("maps") ports = {
	.type = MAP_HASH, .key_size = sizeof(struct address), .value_size = sizeof(struct port),
	.max_entries = 4096, .pinning = BY_NAME,
};

struct bpf_map_def SECTION("maps") flows = {
	.type = MAP_LRU_HASH, .key_size = sizeof(struct flow), .value_size = sizeof(struct known),
	.max_entries = 65536, .pinning = BY_NAME,
};

// Ranges of other nodes' pods.
struct bpf_map_def SECTION("maps") ways = {
	.type = MAP_LPM_TRIE, .key_size = sizeof(struct range), .value_size = sizeof(struct way),
	.max_entries = 65536, .map_flags = NO_PREALLOC, .pinning = BY_NAME,
};

// The hardware address of the bridge, which is the next hop of its pods; then two zeros.
struct bpf_map_def SECTION("maps") bridge = {
	.type = MAP_ARRAY, .key_size = sizeof(__u32), .value_size = 8,
	.max_entries = 1, .pinning = BY_NAME,
};

// How many packets were taken, on each CPU.
struct bpf_map_def SECTION("maps") taken = {
	.type = MAP_PERCPU_ARRAY, .key_size = sizeof(__u32), .value_size = sizeof(__u64),
	.max_entries = 1, .pinning = BY_NAME,
};

struct ethernet {
	__u8 to[6], from[6];
	__u16 protocol;
} __attribute__((packed));

struct ipv4 {
	__u8 version_and_length, service;
	__u16 length, id, fragment;
	__u8 ttl, protocol;
	__u16 checksum;
	__u32 from, to;
};

struct ipv6 {
	__u32 version_and_flow;
	__u16 length;
	__u8 next, hops;
	struct address from, to;
};

struct tcp {
	__u16 from, to;
	__u32 sequence, acknowledged;
	__u8 offset, flags;
	__u16 window;
};

enum { FIN = 1, SYN = 2, RST = 4, ACK = 16, TCP = 6 };
enum { LONGEST = sizeof(struct ethernet) + sizeof(struct ipv6) + sizeof(struct tcp) };
enum { SHORTEST = sizeof(struct ethernet) + sizeof(struct ipv4) + sizeof(struct tcp) };

ALWAYS int is_mac(const __u8 *one, const __u8 *other)
{
	int differ = 0;
	for (int at = 0; at < 6; at++)
		differ |= one[at] ^ other[at];
	return differ == 0;
}

ALWAYS struct address mapped(__u32 address)
{
	struct address all = { { 0, 0, NET32(0xffff), address } };
	return all;
}

ALWAYS struct flow turned(const struct flow *flow)
{
	struct flow other = { flow->to, flow->from, flow->to_port, flow->from_port };
	return other;
}

// Whether this acknowledges that very SYN, which may carry data (TCP Fast Open).
ALWAYS int answers(const struct tcp *tcp, const struct known *known)
{
	return NET32(tcp->acknowledged) - known->sequence - 1 <= 0xffff;
}

// Whether the packet of a flow may be taken. Remembers what it says of the flow.
ALWAYS int is_direct(const struct flow *flow, const struct tcp *tcp)
{
	__u8 flags = tcp->flags;
	if ((flags & (SYN | ACK)) == SYN) {
		struct known opening = { OPENING, NET32(tcp->sequence) };
		struct known *known = map_lookup(&flows, flow);
		if (known && known->state == FOREIGN)
			return 0;
		// One that has been answered stays open: what comes may be a stray one, and the other side has packets on their way.
		if (known && known->state == OPEN)
			opening.state = OPEN;
		map_update(&flows, flow, &opening, 0);
		return 1;
	}
	struct flow back = turned(flow);
	if ((flags & (SYN | ACK)) == (SYN | ACK)) {
		struct known *known = map_lookup(&flows, &back);
		if (known && known->state != FOREIGN && answers(tcp, known)) {
			known->state = OPEN;
			return 1;
		}
		struct known foreign = { FOREIGN, 0 };
		map_update(&flows, &back, &foreign, 0);
		return 0;
	}
	struct known *known = map_lookup(&flows, flow);
	if (known)
		return known->state != FOREIGN;
	known = map_lookup(&flows, &back);
	if (!known)
		return 0;
	__u32 state = known->state;
	if (state == FOREIGN && (flags & (FIN | RST)))
		map_delete(&flows, &back);
	// Nobody listens there. The packet filter saw no SYN, and would drop the answer as one to nothing.
	if (state == OPENING && (flags & RST) && (flags & ACK))
		return answers(tcp, known);
	return state == OPEN;
}

// The packet, if it is TCP of a kind that is taken, with its flow.
struct seen {
	struct ethernet *ethernet;
	struct tcp *tcp;
	struct flow flow;
};

ALWAYS int look(struct __sk_buff *packet, struct seen *seen)
{
	if (packet->vlan_present || packet->len < SHORTEST)
		return 0;
	void *data = (void *)(long)packet->data, *end = (void *)(long)packet->data_end;
	if (data + LONGEST > end) {
		pull_data(packet, packet->len < LONGEST ? packet->len : LONGEST);
		data = (void *)(long)packet->data;
		end = (void *)(long)packet->data_end;
	}
	if (data + SHORTEST > end)
		return 0;
	seen->ethernet = data;
	if (seen->ethernet->protocol == NET16(0x0800)) {
		struct ipv4 *ip = data + sizeof(struct ethernet);
		// Neither options nor fragments.
		if (ip->version_and_length != 0x45 || (ip->fragment & NET16(0x3fff)) || ip->protocol != TCP)
			return 0;
		seen->flow.from = mapped(ip->from);
		seen->flow.to = mapped(ip->to);
		seen->tcp = (void *)(ip + 1);
	} else if (seen->ethernet->protocol == NET16(0x86dd)) {
		struct ipv6 *ip = data + sizeof(struct ethernet);
		if (data + LONGEST > end || ip->next != TCP)
			return 0;
		seen->flow.from = ip->from;
		seen->flow.to = ip->to;
		seen->tcp = (void *)(ip + 1);
	} else {
		return 0;
	}
	seen->flow.from_port = seen->tcp->from;
	seen->flow.to_port = seen->tcp->to;
	return 1;
}

ALWAYS struct way *way_to(const struct address *address)
{
	struct range all = { 128, *address };
	return map_lookup(&ways, &all);
}

ALWAYS __u8 *mac_of_bridge(void)
{
	__u32 first = 0;
	return map_lookup(&bridge, &first);
}

ALWAYS void count(void)
{
	__u32 first = 0;
	__u64 *all = map_lookup(&taken, &first);
	if (all)
		++*all;
}

SECTION("classifier") int redirect(struct __sk_buff *packet)
{
	struct seen seen = { 0 };
	if (!look(packet, &seen))
		return GO_ON;
	// Nobody speaks in another's name; what the packet filter makes of such a packet is its own affair.
	struct port *from = map_lookup(&ports, &seen.flow.from);
	if (!from || from->link != packet->ifindex || !is_mac(from->mac, seen.ethernet->from))
		return GO_ON;
	struct port *to = map_lookup(&ports, &seen.flow.to);
	if (to) {
		if (to->link == from->link || !is_mac(to->mac, seen.ethernet->to) || !is_direct(&seen.flow, seen.tcp))
			return GO_ON;
		count();
		return redirect_peer(to->link, 0);
	}
	struct way *way = way_to(&seen.flow.to);
	__u8 *mac = mac_of_bridge();
	if (!way || !mac || !is_mac(mac, seen.ethernet->to) || !is_direct(&seen.flow, seen.tcp))
		return GO_ON;
	count();
	struct hop hop = way->hop;
	return redirect_neigh(way->link, &hop, sizeof(hop), 0);
}

SECTION("classifier") int arrive(struct __sk_buff *packet)
{
	struct seen seen = { 0 };
	if (packet->pkt_type != TO_THIS_HOST || !look(packet, &seen))
		return GO_ON;
	struct port *to = map_lookup(&ports, &seen.flow.to);
	if (!to)
		return GO_ON;
	// Only by the link that answers leave by.
	struct way *way = way_to(&seen.flow.from);
	__u8 *mac = mac_of_bridge();
	if (!way || way->link != packet->ifindex || !mac || !is_direct(&seen.flow, seen.tcp))
		return GO_ON;
	__builtin_memcpy(seen.ethernet->to, to->mac, 6);
	__builtin_memcpy(seen.ethernet->from, mac, 6);
	count();
	return redirect_peer(to->link, 0);
}

char licence[] SECTION("license") = "Apache-2.0";
