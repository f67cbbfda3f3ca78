package egress

import (
	"net/netip"
	"slices"
)

// special are the ranges that are no hosts of the internet (IANA's registries of special-purpose addresses), with what
// people call them. The first that contains an address counts.
func special() []struct{ prefix, what string } {
	return []struct{ prefix, what string }{
		{"169.254.169.254/32", "a metadata service"},
		{"168.63.129.16/32", "a metadata service"},     // of Azure; else a public address
		{"100.100.100.200/32", "a metadata service"},   // of Alibaba Cloud
		{"fd00:ec2::254/128", "a metadata service"},    // of AWS
		{"fd20:ce::254/128", "a metadata service"},     // of Google Cloud
		{"127.0.0.0/8", "a loopback address"},          //
		{"::1/128", "a loopback address"},              //
		{"0.0.0.0/8", "an unspecified address"},        //
		{"::/128", "an unspecified address"},           //
		{"10.0.0.0/8", "a private address"},            //
		{"172.16.0.0/12", "a private address"},         //
		{"192.168.0.0/16", "a private address"},        //
		{"fc00::/7", "a private address"},              //
		{"fec0::/10", "a private address"},             // site-local, deprecated
		{"100.64.0.0/10", "a carrier's own address"},   //
		{"169.254.0.0/16", "a link-local address"},     //
		{"fe80::/10", "a link-local address"},          //
		{"224.0.0.0/4", "a multicast address"},         //
		{"ff00::/8", "a multicast address"},            //
		{"240.0.0.0/4", "a reserved address"},          // with the broadcast address
		{"192.0.0.0/24", "a reserved address"},         //
		{"192.0.2.0/24", "a reserved address"},         // documentation, as the next two
		{"198.51.100.0/24", "a reserved address"},      //
		{"203.0.113.0/24", "a reserved address"},       //
		{"198.18.0.0/15", "a reserved address"},        // benchmarks
		{"192.88.99.0/24", "a reserved address"},       // relays of 6to4
		{"100::/64", "a reserved address"},             // discarded
		{"2001:db8::/32", "a reserved address"},        // documentation
		{"3fff::/20", "a reserved address"},            // documentation
		{"5f00::/16", "a reserved address"},            // segment routing
		{"::/96", "an IPv4 address in IPv6"},           // compatible, deprecated
		{"::ffff:0:0:0/96", "an IPv4 address in IPv6"}, // translated
		{"64:ff9b::/96", "an IPv4 address in IPv6"},    // NAT64
		{"64:ff9b:1::/48", "an IPv4 address in IPv6"},  // NAT64 of a network's own
		{"2002::/16", "an IPv4 address in IPv6"},       // 6to4
		{"2001::/32", "an IPv4 address in IPv6"},       // Teredo
	}
}

// specialRanges are special, parsed.
func specialRanges() []specialRange {
	var out []specialRange
	for _, s := range special() {
		out = append(out, specialRange{netip.MustParsePrefix(s.prefix), s.what})
	}
	return out
}

type specialRange struct {
	prefix netip.Prefix
	what   string
}

// kindOf says what is special about an address, "" where nothing is: only such are dialled without being listed.
func (p *Proxy) kindOf(a netip.Addr) string {
	a = a.Unmap()
	for _, s := range p.special {
		if s.prefix.Contains(a) {
			return s.what
		}
	}
	if !a.IsGlobalUnicast() {
		return "a reserved address"
	}
	if slices.Contains(p.config.Local(), a) {
		return "an address of this machine"
	}
	return ""
}

// refusal says why an address is not dialled, "" where it may be.
func (p *Proxy) refusal(a netip.AddrPort) string {
	if p.isNever(a) {
		return "the fleet's own server"
	}
	if p.config.Rules.lists(a) {
		return ""
	}
	return p.kindOf(a.Addr())
}

// isNever tells whether an address leads to one that is never to be reached: itself, or another of this machine's with the
// same port.
func (p *Proxy) isNever(a netip.AddrPort) bool {
	for _, n := range p.config.Never() {
		if n.Port() != a.Port() {
			continue
		}
		if n.Addr().Unmap() == a.Addr().Unmap() || p.isHere(n.Addr()) && p.isHere(a.Addr()) {
			return true
		}
	}
	return false
}

// isHere tells whether an address leads to this machine.
func (p *Proxy) isHere(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsLoopback() || a.IsUnspecified() || slices.Contains(p.config.Local(), a)
}
