// SPDX-License-Identifier: Apache-2.0
//
// Fast path for TCP between pods: two tc programs that redirect packets past the bridge, the routes and the packet filter. All
// other packets take the slow path unchanged.
//
// `from_pod` is attached to the host end of a pod's veth pair. Packets to another pod of the node are redirected into that pod;
// packets to a pod of another node on a common link are redirected to that link. `from_node` is attached to such a link: packets
// from a pod of that node to a pod of this node are redirected into the pod.
//
// A redirected packet must have the source MAC and IP address of its pod (anti-spoofing), and the destination MAC and IP address of
// another pod (or, on its way to another node, the MAC address of the bridge). And the connection must not be translated (NAT) on
// this node: conntrack does not see redirected packets, so a reply to a translated packet would never be translated back.
// Therefore connections are tracked from their first packet:
//
// - a SYN to a pod address opens a connection (OPENING, with its sequence number);
// - the SYN+ACK that acknowledges this SYN makes it OPEN; only from then on packets of the responder are redirected, except for the
//   RST that rejects this SYN;
// - a SYN+ACK that acknowledges another SYN (whose destination was translated) makes the 4-tuple TRANSLATED: neither direction is
//   redirected, and a SYN takes the slow path too, where conntrack assigns another port if necessary.
//
// A pod has one connection per 4-tuple, so its SYN+ACK determines the state, whatever was recorded before.
//
// Packets cannot loop: a packet from another node goes into a pod or takes the slow path. So hop limits are not decremented.

// Definitions of the kernel interface (linux/bpf.h, linux/pkt_cls.h), so that no headers are needed.
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
enum { PIN_BY_NAME = 1 };
enum { TC_NEXT = -1 };
enum { PACKET_HOST = 0 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static long (*pull_data)(struct __sk_buff *packet, __u32 length) = (void *)39;
static long (*redirect_neigh)(__u32 link, const void *hop, int length, __u64 flags) = (void *)152;
static long (*redirect_peer)(__u32 link, __u64 flags) = (void *)155;

#define SECTION(name) __attribute__((section(name), used))
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NET16(number) __builtin_bswap16(number)
#define NET32(number) __builtin_bswap32(number)
#else
#define NET16(number) (number)
#define NET32(number) (number)
#endif

struct address {
	__u32 words[4]; // IPv4 addresses are mapped (::ffff:0:0/96)
};

// Location of a pod.
struct port {
	__u32 link; // host end of its veth pair
	__u8 mac[8]; // of the pod end, zero-padded
};

// An address range, as key of a longest prefix match.
struct range {
	__u32 bits;
	struct address address;
};

// A next hop (struct bpf_redir_neigh).
struct neigh {
	__u32 family; // 2: IPv4, 10: IPv6
	__u32 words[4]; // an IPv4 address uses the first word
};

// Route to pods of another node.
struct route {
	__u32 link; // egress link
	struct neigh next_hop;
};

struct flow {
	struct address from, to; // `from` is the initiator
	__u16 from_port, to_port;
};

enum connection_state { OPENING = 1, OPEN = 2, TRANSLATED = 3 };

struct connection {
	__u32 state;
	__u32 sequence; // of the SYN
};

struct bpf_map_def SECTION("maps") ports = {
	.type = MAP_HASH, .key_size = sizeof(struct address), .value_size = sizeof(struct port),
	.max_entries = 4096, .pinning = PIN_BY_NAME,
};

struct bpf_map_def SECTION("maps") flows = {
	.type = MAP_LRU_HASH, .key_size = sizeof(struct flow), .value_size = sizeof(struct connection),
	.max_entries = 65536, .pinning = PIN_BY_NAME,
};

// Routes by pod ranges of other nodes.
struct bpf_map_def SECTION("maps") remote_ranges = {
	.type = MAP_LPM_TRIE, .key_size = sizeof(struct range), .value_size = sizeof(struct route),
	.max_entries = 65536, .map_flags = NO_PREALLOC, .pinning = PIN_BY_NAME,
};

// MAC address of the bridge, the gateway of its pods; zero-padded.
struct bpf_map_def SECTION("maps") bridge = {
	.type = MAP_ARRAY, .key_size = sizeof(__u32), .value_size = 8,
	.max_entries = 1, .pinning = PIN_BY_NAME,
};

// Number of redirected packets, per CPU.
struct bpf_map_def SECTION("maps") redirected = {
	.type = MAP_PERCPU_ARRAY, .key_size = sizeof(__u32), .value_size = sizeof(__u64),
	.max_entries = 1, .pinning = PIN_BY_NAME,
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
enum { MAX_HEADERS = sizeof(struct ethernet) + sizeof(struct ipv6) + sizeof(struct tcp) };
enum { MIN_HEADERS = sizeof(struct ethernet) + sizeof(struct ipv4) + sizeof(struct tcp) };

ALWAYS_INLINE int mac_equal(const __u8 *one, const __u8 *other)
{
	int differ = 0;
	for (int at = 0; at < 6; at++)
		differ |= one[at] ^ other[at];
	return differ == 0;
}

ALWAYS_INLINE struct address ipv4_mapped(__u32 address)
{
	struct address all = { { 0, 0, NET32(0xffff), address } };
	return all;
}

ALWAYS_INLINE struct flow reversed(const struct flow *flow)
{
	struct flow other = { flow->to, flow->from, flow->to_port, flow->from_port };
	return other;
}

// Whether the segment acknowledges the SYN of the connection, which may carry data (TCP Fast Open).
ALWAYS_INLINE int acknowledges_syn(const struct tcp *tcp, const struct connection *connection)
{
	return NET32(tcp->acknowledged) - connection->sequence - 1 <= 0xffff;
}

// Whether a packet of the flow may be redirected. Updates the state of the connection.
ALWAYS_INLINE int may_redirect(const struct flow *flow, const struct tcp *tcp)
{
	__u8 flags = tcp->flags;
	if ((flags & (SYN | ACK)) == SYN) {
		struct connection opening = { OPENING, NET32(tcp->sequence) };
		struct connection *connection = map_lookup(&flows, flow);
		if (connection && connection->state == TRANSLATED)
			return 0;
		// An open connection stays open: the SYN may be a stray one, and the peer has packets in flight.
		if (connection && connection->state == OPEN)
			opening.state = OPEN;
		map_update(&flows, flow, &opening, 0);
		return 1;
	}
	struct flow reverse = reversed(flow);
	if ((flags & (SYN | ACK)) == (SYN | ACK)) {
		struct connection *connection = map_lookup(&flows, &reverse);
		if (connection && connection->state != TRANSLATED && acknowledges_syn(tcp, connection)) {
			connection->state = OPEN;
			return 1;
		}
		struct connection translated = { TRANSLATED, 0 };
		map_update(&flows, &reverse, &translated, 0);
		return 0;
	}
	struct connection *connection = map_lookup(&flows, flow);
	if (connection)
		return connection->state != TRANSLATED;
	connection = map_lookup(&flows, &reverse);
	if (!connection)
		return 0;
	__u32 state = connection->state;
	if (state == TRANSLATED && (flags & (FIN | RST)))
		map_delete(&flows, &reverse);
	// Connection refused. Conntrack has not parsed the SYN, and the packet filter would drop the RST as invalid.
	if (state == OPENING && (flags & RST) && (flags & ACK))
		return acknowledges_syn(tcp, connection);
	return state == OPEN;
}

// A parsed TCP packet.
struct parsed {
	struct ethernet *ethernet;
	struct tcp *tcp;
	struct flow flow;
};

ALWAYS_INLINE int parse(struct __sk_buff *packet, struct parsed *parsed)
{
	if (packet->vlan_present || packet->len < MIN_HEADERS)
		return 0;
	void *data = (void *)(long)packet->data, *end = (void *)(long)packet->data_end;
	if (data + MAX_HEADERS > end) {
		pull_data(packet, packet->len < MAX_HEADERS ? packet->len : MAX_HEADERS);
		data = (void *)(long)packet->data;
		end = (void *)(long)packet->data_end;
	}
	if (data + MIN_HEADERS > end)
		return 0;
	parsed->ethernet = data;
	if (parsed->ethernet->protocol == NET16(0x0800)) {
		struct ipv4 *ip = data + sizeof(struct ethernet);
		// No options, no fragments.
		if (ip->version_and_length != 0x45 || (ip->fragment & NET16(0x3fff)) || ip->protocol != TCP)
			return 0;
		parsed->flow.from = ipv4_mapped(ip->from);
		parsed->flow.to = ipv4_mapped(ip->to);
		parsed->tcp = (void *)(ip + 1);
	} else if (parsed->ethernet->protocol == NET16(0x86dd)) {
		struct ipv6 *ip = data + sizeof(struct ethernet);
		if (data + MAX_HEADERS > end || ip->next != TCP)
			return 0;
		parsed->flow.from = ip->from;
		parsed->flow.to = ip->to;
		parsed->tcp = (void *)(ip + 1);
	} else {
		return 0;
	}
	parsed->flow.from_port = parsed->tcp->from;
	parsed->flow.to_port = parsed->tcp->to;
	return 1;
}

ALWAYS_INLINE struct route *route_to(const struct address *address)
{
	struct range all = { 128, *address };
	return map_lookup(&remote_ranges, &all);
}

ALWAYS_INLINE __u8 *bridge_mac(void)
{
	__u32 first = 0;
	return map_lookup(&bridge, &first);
}

ALWAYS_INLINE void count_redirect(void)
{
	__u32 first = 0;
	__u64 *packets = map_lookup(&redirected, &first);
	if (packets)
		++*packets;
}

SECTION("classifier") int from_pod(struct __sk_buff *packet)
{
	struct parsed parsed = { 0 };
	if (!parse(packet, &parsed))
		return TC_NEXT;
	// Anti-spoofing: packets with a foreign source address are left to nftables.
	struct port *from = map_lookup(&ports, &parsed.flow.from);
	if (!from || from->link != packet->ifindex || !mac_equal(from->mac, parsed.ethernet->from))
		return TC_NEXT;
	struct port *to = map_lookup(&ports, &parsed.flow.to);
	if (to) {
		if (to->link == from->link || !mac_equal(to->mac, parsed.ethernet->to) || !may_redirect(&parsed.flow, parsed.tcp))
			return TC_NEXT;
		count_redirect();
		return redirect_peer(to->link, 0);
	}
	struct route *route = route_to(&parsed.flow.to);
	__u8 *mac = bridge_mac();
	if (!route || !mac || !mac_equal(mac, parsed.ethernet->to) || !may_redirect(&parsed.flow, parsed.tcp))
		return TC_NEXT;
	count_redirect();
	struct neigh next_hop = route->next_hop;
	return redirect_neigh(route->link, &next_hop, sizeof(next_hop), 0);
}

SECTION("classifier") int from_node(struct __sk_buff *packet)
{
	struct parsed parsed = { 0 };
	if (packet->pkt_type != PACKET_HOST || !parse(packet, &parsed))
		return TC_NEXT;
	struct port *to = map_lookup(&ports, &parsed.flow.to);
	if (!to)
		return TC_NEXT;
	// Only on the link that replies are sent on.
	struct route *route = route_to(&parsed.flow.from);
	__u8 *mac = bridge_mac();
	if (!route || route->link != packet->ifindex || !mac || !may_redirect(&parsed.flow, parsed.tcp))
		return TC_NEXT;
	__builtin_memcpy(parsed.ethernet->to, to->mac, 6);
	__builtin_memcpy(parsed.ethernet->from, mac, 6);
	count_redirect();
	return redirect_peer(to->link, 0);
}

char LICENSE[] SECTION("license") = "Apache-2.0";
