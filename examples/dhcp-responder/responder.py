import ipaddress, socket, sys

# responder.py OBJECT SOCKET SERVER LEASE
knit = socket.socket(socket.AF_UNIX)
knit.connect("\0knit/sockets/" + sys.argv[1])
knit.sendall(sys.argv[2].encode() + b"\n")
line, descriptors, _, _ = socket.recv_fds(knit, 1024, 1)
if not descriptors:
    sys.exit(line.decode().strip())
dhcp = socket.socket(fileno=descriptors[0])
print("listening on port", dhcp.getsockname()[1], flush=True)
server, lease = (ipaddress.ip_address(text).packed for text in sys.argv[3:5])
while True:
    request = dhcp.recv(1500)
    kind = request[request.find(b"\x35\x01", 240) + 2]
    if request[0] != 1 or kind not in (1, 3):
        continue
    options = b"\x35\x01" + bytes([2 if kind == 1 else 5]) + b"\x36\x04" + server
    options += b"\x33\x04\x00\x00\x0e\x10\x01\x04\xff\xff\xff\x00\xff"
    head = b"\x02\x01\x06\x00" + request[4:8] + b"\x00\x00" + request[10:12] + bytes(4) + lease + server
    dhcp.sendto(head + bytes(4) + request[28:44] + bytes(192) + request[236:240] + options, ("255.255.255.255", 68))
