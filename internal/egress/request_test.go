package egress

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse_Refuses(t *testing.T) {
	const get, host = "GET http://a.example/ HTTP/1.1\r\n", "Host: a.example\r\n"
	for name, head := range map[string]string{
		"NoHost":                 get,
		"TwoHosts":               get + host + host,
		"TwoHostsOddCase":        get + host + "hOST: evil.example\r\n",
		"OtherHost":              get + "Host: evil.example\r\n",
		"OtherHostPort":          get + "Host: a.example:8080\r\n",
		"HostWithUser":           get + "Host: x@a.example\r\n",
		"HostList":               get + "Host: a.example, evil.example\r\n",
		"OriginForm":             "GET / HTTP/1.1\r\n" + host,
		"OriginFormURL":          "GET /http://a.example/ HTTP/1.1\r\n" + host,
		"Asterisk":               "OPTIONS * HTTP/1.1\r\n" + host,
		"HTTPS":                  "GET https://a.example/ HTTP/1.1\r\n" + host,
		"FTP":                    "GET ftp://a.example/ HTTP/1.1\r\n" + host,
		"User":                   "GET http://u:p@a.example/ HTTP/1.1\r\n" + host,
		"UserIsAllowedHost":      "GET http://a.example@evil.example/ HTTP/1.1\r\n" + host,
		"Backslash":              "GET http://a.example\\@evil.example/ HTTP/1.1\r\n" + host,
		"Fragment":               "GET http://a.example/#x HTTP/1.1\r\n" + host,
		"FragmentBeforeHost":     "GET http://a.example#.evil.example/ HTTP/1.1\r\n" + host,
		"Encoded":                "GET http://a%2eexample/ HTTP/1.1\r\n" + host,
		"NotASCII":               "GET http://a.example/é HTTP/1.1\r\n" + host,
		"SpaceInTarget":          "GET http://a.example/ x HTTP/1.1\r\n" + host,
		"TwoSpaces":              "GET  http://a.example/ HTTP/1.1\r\n" + host,
		"Version09":              "GET http://a.example/\r\n" + host,
		"Version2":               "GET http://a.example/ HTTP/2.0\r\n" + host,
		"VersionOdd":             "GET http://a.example/ HTTP/1.10\r\n" + host,
		"Method":                 "G(T http://a.example/ HTTP/1.1\r\n" + host,
		"ConnectUser":            "CONNECT u@a.example:443 HTTP/1.1\r\n" + host,
		"ConnectUserIsAllowed":   "CONNECT a.example:443@evil.example:443 HTTP/1.1\r\n" + host,
		"ConnectNoPort":          "CONNECT a.example HTTP/1.1\r\n" + host,
		"ConnectURL":             "CONNECT https://a.example:443 HTTP/1.1\r\n" + host,
		"ConnectPath":            "CONNECT a.example:443/x HTTP/1.1\r\n" + host,
		"ConnectOtherHost":       "CONNECT a.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n",
		"ConnectOtherPort":       "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:22\r\n",
		"ConnectTwoHosts":        "CONNECT a.example:443 HTTP/1.1\r\n" + host + host,
		"ConnectBody":            "CONNECT a.example:443 HTTP/1.1\r\n" + host + "Content-Length: 5\r\n",
		"ConnectChunked":         "CONNECT a.example:443 HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n",
		"LengthAndChunked":       get + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
		"TwoLengths":             get + host + "Content-Length: 5\r\nContent-Length: 6\r\n",
		"TwoEqualLengths":        get + host + "Content-Length: 5\r\nContent-Length: 5\r\n",
		"LengthList":             get + host + "Content-Length: 5, 5\r\n",
		"LengthSign":             get + host + "Content-Length: +5\r\n",
		"LengthNegative":         get + host + "Content-Length: -1\r\n",
		"LengthHex":              get + host + "Content-Length: 0x5\r\n",
		"LengthHuge":             get + host + "Content-Length: 99999999999999999999\r\n",
		"LengthEmpty":            get + host + "Content-Length: \r\n",
		"ChunkedTwice":           get + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
		"ChunkedAndOther":        get + host + "Transfer-Encoding: chunked, identity\r\n",
		"ChunkedOdd":             get + host + "Transfer-Encoding: xchunked\r\n",
		"ChunkedOld":             "GET http://a.example/ HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n",
		"SpaceBeforeColon":       get + "Host : a.example\r\n",
		"Folded":                 get + host + "X: y\r\n Host: evil.example\r\n",
		"NoColon":                get + host + "X\r\n",
		"EmptyName":              get + host + ": x\r\n",
		"NUL":                    get + host + "X: a\x00b\r\n",
		"CRInValue":              get + host + "X: a\rHost: evil.example\r\n",
		"LFInValue":              get + host + "X: a\nHost: evil.example\r\n",
		"Expects":                get + host + "Expect: something\r\n",
		"NumberAsHost":           "GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n",
		"ShortAddress":           "CONNECT 127.1:443 HTTP/1.1\r\n",
		"ZonedAddress":           "CONNECT [fe80::1%25lo]:443 HTTP/1.1\r\n",
		"EmptyTarget":            "CONNECT  HTTP/1.1\r\n" + host,
		"EmptyAuthority":         "GET http:///x HTTP/1.1\r\n" + host,
		"AuthorityWithoutScheme": "GET a.example/ HTTP/1.1\r\n" + host,
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := readHead(bufio.NewReader(strings.NewReader(head + "\r\n")))
			var r request
			if err == nil {
				r, err = parse(raw)
			}
			var malformed errMalformed
			if !errors.As(err, &malformed) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
}

func TestReadHead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"Nothing", "", io.EOF},
		{"Cut", "GET http://a/ HTTP/1.1\r\nHost: a\r\n", io.ErrUnexpectedEOF},
		{"BareLF", "GET http://a/ HTTP/1.1\nHost: a\n\n", errMalformed("a line does not end in CR LF")},
		{"EmptyLine", "\r\nGET http://a/ HTTP/1.1\r\n\r\n", errMalformed("it begins with an empty line")},
		{"LongLine", "GET http://a/" + strings.Repeat("a", maxHead), errMalformed("the head is too long")},
		{"ManyLines", "GET http://a/ HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", maxHead/6), errMalformed("the head is too long")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := readHead(bufio.NewReader(strings.NewReader(c.text))); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// What goes on to the host is the path that was asked for, never something that it could take for another host's.
func TestRequest_Outgoing(t *testing.T) {
	for _, c := range []struct{ name, head, want string }{
		{
			"Plain", "GET HTTP://A.example.:80/x%2Fy?q=1&r=%20 HTTP/1.1\r\nHost: a.EXAMPLE\r\nAccept: */*\r\nProxy-Authorization: secret\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nUpgrade: h2c\r\nTE: trailers\r\n",
			"GET /x%2Fy?q=1&r=%20 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nAccept: */*\r\n\r\n",
		},
		{"TwoSlashes", "GET http://a.example//evil.example/ HTTP/1.1\r\nHost: a.example\r\n", "GET //evil.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"},
		{"NoPath", "GET http://a.example?q HTTP/1.1\r\nHost: a.example\r\n", "GET /?q HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"},
		{"OldWithoutHost", "GET http://a.example:81/ HTTP/1.0\r\n", "GET / HTTP/1.1\r\nHost: a.example:81\r\nConnection: close\r\n\r\n"},
		{"Address", "GET http://[2001:db8::1]/ HTTP/1.1\r\nHost: [2001:DB8::1]:80\r\n", "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\nConnection: close\r\n\r\n"},
		{"Body", "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nExpect: 100-continue\r\n", "POST / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := parse([]byte(c.head + "\r\n"))
			if err != nil {
				t.Fatal(err)
			}
			out, err := r.outgoing(io.LimitReader(strings.NewReader("abcGET / HTTP/1.1\r\n"), max(r.length, 0)))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := out.Write(&got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(got.String(), c.want); d != "" {
				t.Errorf("(-got +want)\n%s", d)
			}
		})
	}
}

// Whatever is accepted, a second reader of what goes on sees one request, for the host that was checked.
func FuzzParse(f *testing.F) {
	f.Add([]byte("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\n"))
	f.Add([]byte("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"))
	f.Add([]byte("POST http://[::1]:8/x?y HTTP/1.0\r\nConnection: a,b\r\nA: \r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		head, err := readHead(bufio.NewReader(bytes.NewReader(text)))
		if err != nil {
			return
		}
		r, err := parse(head)
		if err != nil {
			return
		}
		if again, ok := parseTarget(r.target.String(), 0); !ok || again != r.target {
			t.Fatalf("target %v reads back as %v", r.target, again)
		}
		if r.tunnel {
			return
		}
		out, err := r.outgoing(strings.NewReader(""))
		if err != nil {
			return
		}
		out.Body, out.ContentLength = http.NoBody, 0
		var sent bytes.Buffer
		if err := out.Write(&sent); err != nil {
			return
		}
		in := bufio.NewReader(&sent)
		seen, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q: %v", sent.String(), err)
		}
		if got, ok := parseTarget(seen.Host, 80); !ok || got != r.target {
			t.Errorf("%q: the host sees %q, %v was checked", text, seen.Host, r.target)
		}
		if rest, _ := io.ReadAll(in); len(rest) > 0 {
			t.Errorf("%q: %q is left over", text, rest)
		}
	})
}
