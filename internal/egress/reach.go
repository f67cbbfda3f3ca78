package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// refused is a target that is not reached because it must not be.
type refused struct {
	target target
	why    string
}

func (r *refused) Error() string { return fmt.Sprintf("%s is refused: %s", r.target, r.why) }

// reach connects to a target that is listed, by an address that was checked, and keeps what was decided.
func (p *Proxy) reach(t target) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialLimit)
	defer cancel()
	conn, err := p.open(ctx, t)
	d := Decision{Host: t.host.String(), Port: t.port, Verdict: Allowed}
	var no *refused
	switch {
	case errors.As(err, &no):
		d.Verdict, d.Why = Denied, no.why
	case err != nil:
		d.Verdict, d.Why = Failed, err.Error()
	}
	if p.ctx.Err() == nil {
		p.ledger.add(d)
	}
	return conn, err
}

func (p *Proxy) open(ctx context.Context, t target) (*net.TCPConn, error) {
	if !p.config.Rules.allows(t) {
		return nil, &refused{t, "it is not in the list"}
	}
	addresses, err := p.resolve(ctx, t)
	if err != nil {
		return nil, err
	}
	var last error
	for _, a := range addresses {
		conn, err := p.dial(ctx, a)
		if err == nil {
			return conn, nil
		}
		last = err
	}
	return nil, fmt.Errorf("%s does not answer: %w", t, plain(last))
}

// resolve returns the addresses of a target that may be dialled, at least one.
func (p *Proxy) resolve(ctx context.Context, t target) ([]netip.AddrPort, error) {
	found := []netip.Addr{t.host.addr}
	if !t.host.addr.IsValid() {
		var err error
		if found, err = p.config.Lookup(ctx, t.host.name); err != nil {
			return nil, fmt.Errorf("%s can't be resolved: %w", t.host, plainLookup(err))
		}
	}
	var good []netip.AddrPort
	why := "it has no address"
	for _, a := range found {
		to := netip.AddrPortFrom(a.Unmap().WithZone(""), t.port)
		no := p.refusal(to)
		switch {
		case no == "":
			good = append(good, to)
		case t.host.addr.IsValid():
			why = "it is " + no
		case p.isNever(to):
			why = fmt.Sprintf("it resolves to %s, %s", to.Addr(), no)
		default:
			why = fmt.Sprintf("it resolves to %s, %s: list %s too if that is meant", to.Addr(), no, to)
		}
	}
	if len(good) == 0 {
		return nil, &refused{t, why}
	}
	return good[:min(len(good), maxAddresses)], nil
}

func (p *Proxy) dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, addressLimit)
	defer cancel()
	return p.config.Dial(ctx, to)
}

// plain is the cause of an error of dialling, without the addresses that net puts before it.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}

// plainLookup leaves out which server was asked.
func plainLookup(err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return errors.New(strings.TrimSpace(dns.Err))
	}
	return err
}
