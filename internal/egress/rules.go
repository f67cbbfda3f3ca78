package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ErrRule reports an entry of a list that is neither a host nor an address, with or without a port.
var ErrRule = errors.New("egress: want host, host:port, address or address:port")

// maxName is the length of the longest name (RFC 1035, 2.3.4).
const maxName = 253

// webPorts are what an entry without a port allows.
func webPorts() []uint16 { return []uint16{80, 443} }

// Rules say what may be reached. The zero value allows nothing.
type Rules struct {
	names     map[string][]uint16 // lower case, without a dot at the end
	suffixes  map[string][]uint16 // .example.com of *.example.com
	addresses map[netip.Addr][]uint16
}

// ParseRules reads a list. Its entries are
//
//	example.com        ports 80 and 443 of that host
//	example.com:8443   that port of it
//	*.example.com      every host below example.com, not example.com itself; also with a port
//	192.0.2.1, 2001:db8::1, [2001:db8::1]:443
//
// Names match in any case, with and without a dot at their end. ErrRule: an entry is none of these.
func ParseRules(list []string) (Rules, error) {
	r := Rules{names: map[string][]uint16{}, suffixes: map[string][]uint16{}, addresses: map[netip.Addr][]uint16{}}
	for _, entry := range list {
		if !r.add(entry) {
			return Rules{}, fmt.Errorf("%w: %q", ErrRule, entry)
		}
	}
	return r, nil
}

func (r Rules) add(entry string) bool {
	ports, text := webPorts(), entry
	if _, err := netip.ParseAddr(entry); err != nil && strings.Contains(entry, ":") {
		host, port, ok := splitPort(entry)
		if !ok {
			return false
		}
		ports, text = []uint16{port}, host
	}
	below, wild := strings.CutPrefix(text, "*.")
	h, ok := parseHost(below)
	switch {
	case !ok || wild && h.addr.IsValid():
		return false
	case wild:
		r.suffixes["."+h.name] = append(r.suffixes["."+h.name], ports...)
	case h.addr.IsValid():
		r.addresses[h.addr] = append(r.addresses[h.addr], ports...)
	default:
		r.names[h.name] = append(r.names[h.name], ports...)
	}
	return true
}

// host is a name or an address; exactly one is set.
type host struct {
	name string // lower case, without a dot at the end
	addr netip.Addr
}

func (h host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// target is a host's port, as a client asks for it.
type target struct {
	host host
	port uint16
}

func (t target) String() string {
	if t.host.addr.IsValid() {
		return netip.AddrPortFrom(t.host.addr, t.port).String()
	}
	return t.host.name + ":" + strconv.Itoa(int(t.port))
}

// parseHost reads a name in ASCII, or an address in its full form without a zone. Names whose last label is a number are
// refused: some resolvers take 127.1 and 0x7f000001 for addresses, others ask for them as names.
func parseHost(text string) (host, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return host{addr: addr.Unmap()}, addr.Zone() == ""
	}
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	labels := strings.Split(name, ".")
	if name == "" || len(name) > maxName || !slices.Equal(labels, slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return !isLabel(l) })) {
		return host{}, false
	}
	last := labels[len(labels)-1]
	if last[0] >= '0' && last[0] <= '9' {
		return host{}, false
	}
	return host{name: name}, true
}

// isLabel tells a part of a host name (RFC 1123; with the underscore that is in use).
func isLabel(l string) bool {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	for _, c := range []byte(l) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// splitPort splits host:port or [address]:port.
func splitPort(text string) (host string, port uint16, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return "", 0, false
	}
	host = text[:i]
	digits := text[i+1:]
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '0' || digits[0] == '+' {
		return "", 0, false
	}
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		if host, bracketed = strings.CutSuffix(inner, "]"); !bracketed || !strings.Contains(host, ":") {
			return "", 0, false
		}
	} else if strings.Contains(host, ":") {
		return "", 0, false
	}
	return host, uint16(n), true
}

// parseTarget reads host:port; without a port it is otherwise, unless that is 0.
func parseTarget(text string, otherwise uint16) (target, bool) {
	name, port, ok := splitPort(text)
	if !ok && otherwise != 0 {
		name, port = text, otherwise
		if inner, bracketed := strings.CutPrefix(text, "["); bracketed {
			name, ok = strings.CutSuffix(inner, "]")
			ok = ok && strings.Contains(name, ":")
		} else {
			ok = !strings.Contains(text, ":")
		}
	}
	if !ok {
		return target{}, false
	}
	h, ok := parseHost(name)
	return target{host: h, port: port}, ok
}

// allows tells whether a target is listed.
func (r Rules) allows(t target) bool {
	if t.host.addr.IsValid() {
		return r.lists(netip.AddrPortFrom(t.host.addr, t.port))
	}
	if slices.Contains(r.names[t.host.name], t.port) {
		return true
	}
	for rest := t.host.name; ; {
		i := strings.IndexByte(rest, '.')
		if i < 0 {
			return false
		}
		if slices.Contains(r.suffixes[rest[i:]], t.port) {
			return true
		}
		rest = rest[i+1:]
	}
}

// lists tells whether an address is listed as such.
func (r Rules) lists(a netip.AddrPort) bool {
	return slices.Contains(r.addresses[a.Addr().Unmap()], a.Port())
}

// Environment are the variables, as NAME=value, by which programs find a proxy at an address of theirs. Their own loopback is
// not asked of the proxy, unless it is listed: then the host's is meant.
func (r Rules) Environment(proxy netip.AddrPort) []string {
	var direct []string
	for _, own := range []string{"localhost", "127.0.0.1", "::1"} {
		addr, err := netip.ParseAddr(own)
		if _, named := r.names[own]; !named && (err != nil || len(r.addresses[addr]) == 0) {
			direct = append(direct, own)
		}
	}
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env = append(env, name+"=http://"+proxy.String(), strings.ToLower(name)+"=http://"+proxy.String())
	}
	return append(env, "NO_PROXY="+strings.Join(direct, ","), "no_proxy="+strings.Join(direct, ","))
}
