package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxHead bounds a request's line and headers together, in bytes.
const maxHead = 64 << 10

// errMalformed is a request that is not served; its text says what is wrong, without anything of the request in it.
type errMalformed string

func (e errMalformed) Error() string { return string(e) }

// request is what a client asks of the proxy.
type request struct {
	method string
	target target
	tunnel bool // CONNECT; nothing below is set
	uri    string
	old    bool // HTTP/1.0
	header http.Header
	// length is that of the body; -1: it is in chunks.
	length     int64
	waitsForGo bool // Expect: 100-continue
}

// readHead reads up to and with the empty line. io.EOF: the client sent nothing.
func readHead(r *bufio.Reader) ([]byte, error) {
	var head []byte
	for {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		switch {
		case len(head) > maxHead:
			return nil, errMalformed("the head is too long")
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(head) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case bytes.HasSuffix(head, []byte("\r\n\r\n")):
			return head, nil
		case !bytes.HasSuffix(line, []byte("\r\n")):
			return nil, errMalformed("a line does not end in CR LF")
		case len(head) == 2:
			return nil, errMalformed("it begins with an empty line")
		}
	}
}

// parse reads a head. It is stricter than HTTP has to be: what two programs could read in two ways is refused.
func parse(head []byte) (request, error) {
	lines := strings.Split(strings.TrimSuffix(string(head), "\r\n\r\n"), "\r\n")
	r := request{}
	parts := strings.Split(lines[0], " ")
	if len(parts) != 3 || !isToken(parts[0]) || len(parts[0]) > 32 {
		return r, errMalformed("the request line is malformed")
	}
	r.method, r.uri = parts[0], parts[1]
	switch parts[2] {
	case "HTTP/1.1":
	case "HTTP/1.0":
		r.old = true
	default:
		return r, errMalformed("the version is not HTTP/1.1 or 1.0")
	}
	header, err := parseHeader(lines[1:])
	if err != nil {
		return r, err
	}
	r.header = header
	if strings.ContainsFunc(r.uri, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return r, errMalformed("the target has characters that are not allowed")
	}
	if r.tunnel = r.method == http.MethodConnect; r.tunnel {
		err = r.connect()
	} else {
		err = r.absolute()
	}
	if err == nil {
		err = r.sameHost()
	}
	if err == nil {
		err = r.framing()
	}
	return r, err
}

func parseHeader(lines []string) (http.Header, error) {
	header := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return nil, errMalformed("a header is malformed")
		}
		value = strings.Trim(value, " \t")
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return nil, errMalformed("a header has characters that are not allowed")
		}
		header.Add(name, value)
	}
	return header, nil
}

// isToken tells a method or the name of a header (RFC 9110, 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c))
	})
}

func (r *request) connect() error {
	var ok bool
	if r.target, ok = parseTarget(r.uri, 0); !ok {
		return errMalformed("CONNECT wants host:port")
	}
	return nil
}

func (r *request) absolute() error {
	scheme, rest, ok := strings.Cut(r.uri, "://")
	switch {
	case !ok || strings.HasPrefix(r.uri, "/"):
		return errMalformed("this is a proxy: the target has to be a whole URL")
	case !strings.EqualFold(scheme, "http"):
		return errMalformed("the scheme is not http: use CONNECT")
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if r.target, ok = parseTarget(authority, 80); !ok || strings.Contains(path, "#") {
		return errMalformed("the target is no URL of a host")
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	r.uri = path
	return nil
}

// sameHost refuses a request that would be let through for one host and be answered by another.
func (r *request) sameHost() error {
	values := r.header.Values("Host")
	switch {
	case len(values) == 0 && (r.tunnel || r.old):
		return nil
	case len(values) != 1:
		return errMalformed("it does not have exactly one Host header")
	}
	otherwise := uint16(80)
	if r.tunnel {
		otherwise = r.target.port
	}
	if t, ok := parseTarget(values[0], otherwise); !ok || t != r.target {
		return errMalformed("the Host header names another host than the target")
	}
	return nil
}

// framing finds where the body ends, and refuses what could be read in two ways.
func (r *request) framing() error {
	lengths, codings := r.header.Values("Content-Length"), r.header.Values("Transfer-Encoding")
	switch {
	case len(lengths)+len(codings) == 0:
	case r.tunnel:
		return errMalformed("CONNECT has no body")
	case len(lengths)+len(codings) > 1:
		return errMalformed("it has more than one length")
	case len(codings) == 1:
		if r.old || !strings.EqualFold(codings[0], "chunked") {
			return errMalformed("the transfer coding is not chunked")
		}
		r.length = -1
	default:
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil || lengths[0][0] == '+' {
			return errMalformed("the length is no number")
		}
		r.length = int64(n)
	}
	for _, e := range r.header.Values("Expect") {
		if !strings.EqualFold(e, "100-continue") {
			return errMalformed("it expects what is not supported")
		}
		r.waitsForGo = !r.old && r.length != 0
	}
	return nil
}

// outgoing is the request as the host gets it: to the target that was checked, with no more than one body.
func (r *request) outgoing(body io.Reader) (*http.Request, error) {
	u, err := url.ParseRequestURI(r.uri)
	if err != nil {
		return nil, errMalformed("the path is malformed")
	}
	u.Scheme, u.Host = "http", r.target.String()
	out := &http.Request{Method: r.method, URL: u, Host: u.Host, Header: r.header.Clone(), ContentLength: r.length, Body: http.NoBody, Close: true}
	if r.target.port == 80 {
		out.Host = r.target.host.String()
		if r.target.host.addr.Is6() {
			out.Host = "[" + out.Host + "]"
		}
	}
	if r.length != 0 {
		out.Body = io.NopCloser(body)
	}
	stripHops(out.Header)
	for _, name := range []string{"Host", "Content-Length", "Expect"} {
		out.Header.Del(name)
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // else a name of ours is sent
	}
	return out, nil
}

// stripHops removes what is meant for one connection only.
func stripHops(h http.Header) {
	for _, line := range h.Values("Connection") {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	hops := []string{"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings"}
	for name := range h {
		if slices.Contains(hops, name) || strings.HasPrefix(name, "Proxy-") {
			delete(h, name)
		}
	}
}

// reply is a short answer of the proxy itself.
func reply(code int, text string) []byte {
	body := fmt.Sprintf("warmfleet: %s\n", text)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		code, http.StatusText(code), len(body), body)
}
