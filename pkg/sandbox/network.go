package sandbox

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

// startInit starts the sandbox's init, and where its network is a list of hosts the way to them.
func (s *Sandbox) startInit(ctx context.Context) error {
	mode := s.spec.Network
	if mode == isolate.NetworkProxy && s.host.Report.Rung == isolate.RungBare {
		mode = isolate.NetworkNone // nothing can be kept from a network here, and callers were told so
	}
	rules, err := egress.ParseRules(s.spec.Hosts)
	if err != nil {
		return err
	}
	if s.init, err = s.host.Init(ctx, mode, s.spec.Strategy == None); err != nil {
		return err
	}
	if mode != isolate.NetworkProxy {
		return nil
	}
	return s.serve(rules)
}

// serve serves the listener of the sandbox's init for as long as that lives.
func (s *Sandbox) serve(rules egress.Rules) error {
	file := s.init.Listener()
	if file == nil {
		return fmt.Errorf("sandbox: network: its init has no listener")
	}
	listener, err := net.FileListener(file) // has a descriptor of its own
	file.Close()
	if err != nil {
		return fmt.Errorf("sandbox: network: %w", err)
	}
	c := s.host.Egress
	c.Listener, c.Rules = listener, rules
	p := egress.Start(c)
	s.proxy, s.env = p, rules.Environment(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), isolate.ProxyPort))
	go func() {
		<-s.init.Done()
		p.Close()
	}()
	return nil
}

// Decisions are what the sandbox reached of a list of hosts, and was refused, since the last call.
func (s *Sandbox) Decisions() egress.Decisions {
	if s.proxy == nil {
		return egress.Decisions{}
	}
	return s.proxy.Decisions()
}
