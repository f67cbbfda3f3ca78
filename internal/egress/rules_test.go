package egress

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func rulesOf(t testing.TB, list ...string) Rules {
	t.Helper()
	r, err := ParseRules(list)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRules_Allows(t *testing.T) {
	r := rulesOf(t, "Example.com", "api.example.com:8443", "*.wild.example", "*.odd.example:9", "192.0.2.1", "192.0.2.2:22", "2001:db8::1", "[2001:db8::2]:80", "under_score.example.")
	for text, want := range map[string]bool{
		"example.com:80": true, "example.com:443": true, "EXAMPLE.COM.:443": true, "example.com:8080": false,
		"api.example.com:8443": true, "api.example.com:443": false, "sub.example.com:443": false, "notexample.com:443": false, "example.com.evil.org:443": false,
		"a.wild.example:443": true, "a.b.wild.example:80": true, "wild.example:443": false, "awild.example:443": false, "a.wild.example:22": false,
		"a.odd.example:9": true, "a.odd.example:80": false,
		"192.0.2.1:443": true, "[::ffff:192.0.2.1]:443": true, "192.0.2.1:22": false, "192.0.2.2:22": true, "192.0.2.2:80": false, "192.0.2.3:80": false,
		"[2001:db8::1]:80": true, "[2001:DB8:0::1]:80": true, "[2001:db8::2]:80": true, "[2001:db8::2]:443": false,
		"under_score.example:80": true,
	} {
		target, ok := parseTarget(text, 0)
		if !ok {
			t.Errorf("%s: cannot be read", text)
			continue
		}
		if got := r.allows(target); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
	if (Rules{}).allows(target{host: host{name: "example.com"}, port: 443}) {
		t.Error("no rules: got allowed")
	}
}

func TestParseTarget_Refuses(t *testing.T) {
	for _, text := range []string{
		"", ":", ":80", "a", "a:", "a:0", "a:65536", "a:080", "a:+80", "a:8 0", "a:80:80", "a:http", "user@a:80", "a b:80", "a\x00:80", "a/:80",
		"bücher.example:443", "xn--.:443.", "..:80", ".a:80", "a..b:80", "-a:80", "a-:80", "a.:80.", "*.a:80", "a%2eb:80",
		"127.1:80", "2130706433:80", "0x7f000001:80", "0x7f.1:80", "010.0.0.1:80", "1.2.3.4.5:80", "a.1:80", "1.2.3:80", "127.0.0.1.:80",
		"::1:80", "[::1]", "[::1%lo]:80", "[fe80::1%25eth0]:80", "[127.0.0.1]:80", "[a]:80", "[::1:80", "::1]:80", "[[::1]]:80", "[]:80",
	} {
		if got, ok := parseTarget(text, 0); ok {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func TestParseRules_Refuses(t *testing.T) {
	for _, entry := range []string{"", "*", "*.", "*.*.example", "a.*.example", "*.192.0.2.1", "*.10", "http://a", "a/b", "a:", "[::1]", "fe80::1%lo", "bücher.example", "127.1"} {
		if _, err := ParseRules([]string{"fine.example", entry}); !errors.Is(err, ErrRule) {
			t.Errorf("%q: got %v, want %v", entry, err, ErrRule)
		}
	}
}

func TestRules_Environment(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:3128")
	want := []string{
		"HTTP_PROXY=http://127.0.0.1:3128", "http_proxy=http://127.0.0.1:3128", "HTTPS_PROXY=http://127.0.0.1:3128", "https_proxy=http://127.0.0.1:3128",
		"ALL_PROXY=http://127.0.0.1:3128", "all_proxy=http://127.0.0.1:3128", "NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1",
	}
	if d := cmp.Diff(rulesOf(t, "example.com").Environment(at), want); d != "" {
		t.Errorf("(-got +want)\n%s", d)
	}
	listed := rulesOf(t, "127.0.0.1:5432", "localhost:80").Environment(at)
	if got, want := listed[len(listed)-1], "no_proxy=::1"; got != want {
		t.Errorf("listed: got %s, want %s", got, want)
	}
}

func TestProxy_KindOf(t *testing.T) {
	own := netip.MustParseAddr("8.8.4.4")
	p := &Proxy{special: specialRanges(), config: Config{Local: func() []netip.Addr { return []netip.Addr{own} }}.complete()}
	for text, want := range map[string]string{
		"127.0.0.1": "a loopback address", "127.9.9.9": "a loopback address", "::1": "a loopback address", "::ffff:127.0.0.1": "a loopback address",
		"0.0.0.0": "an unspecified address", "0.1.2.3": "an unspecified address", "::": "an unspecified address",
		"10.1.2.3": "a private address", "172.16.0.1": "a private address", "172.31.255.255": "a private address", "192.168.1.1": "a private address",
		"fd00::1": "a private address", "fec0::1": "a private address", "::ffff:10.0.0.1": "a private address",
		"100.64.0.1": "a carrier's own address", "100.127.255.255": "a carrier's own address",
		"169.254.169.254": "a metadata service", "fd00:ec2::254": "a metadata service", "168.63.129.16": "a metadata service", "100.100.100.200": "a metadata service",
		"::ffff:169.254.169.254": "a metadata service", "169.254.1.1": "a link-local address", "fe80::1": "a link-local address",
		"224.0.0.1": "a multicast address", "ff02::1": "a multicast address", "255.255.255.255": "a reserved address", "240.0.0.1": "a reserved address",
		"192.0.2.1": "a reserved address", "198.18.0.1": "a reserved address", "2001:db8::1": "a reserved address",
		"64:ff9b::a9fe:a9fe": "an IPv4 address in IPv6", "64:ff9b:1::1": "an IPv4 address in IPv6", "2002:7f00:1::": "an IPv4 address in IPv6",
		"::127.0.0.1": "an IPv4 address in IPv6", "::ffff:0:127.0.0.1": "an IPv4 address in IPv6", "2001::1": "an IPv4 address in IPv6",
		"8.8.4.4": "an address of this machine",
		"1.1.1.1": "", "172.32.0.1": "", "100.128.0.1": "", "2606:4700::1111": "", "9.9.9.9": "",
	} {
		if got := p.kindOf(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestLedger_Bounded(t *testing.T) {
	var l ledger
	for i := range 10_000 {
		l.add(Decision{Host: "a", Port: uint16(i % 100), Verdict: Denied, Why: "no"})
		l.add(Decision{Host: "b", Port: 443, Verdict: Allowed})
	}
	got := l.take()
	if len(got.List) != maxAlike+1 || got.List[0].Count != 100 || got.List[1].Count != 10_000 || got.Others != 10_000-100*maxAlike {
		t.Errorf("got %d kinds, %d others, %+v", len(got.List), got.Others, got.List[:2])
	}
	if d := cmp.Diff(l.take(), Decisions{}); d != "" {
		t.Errorf("taken twice (-got +want)\n%s", d)
	}
}
