package worker

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// withNetwork is a sandbox's spec with a network of a plan or pool.
func withNetwork(s sandbox.Spec, n plan.Network) sandbox.Spec {
	s.Network, s.Hosts = n.Mode, nil
	if n.Listed() {
		s.Network, s.Hosts = isolate.NetworkProxy, n.Hosts
	}
	return s
}

// askedNetwork is what a session asks for, nil where it leaves that to its pool.
func askedNetwork(req api.SessionStart) *plan.Network {
	if req.Network.IsZero() {
		return nil
	}
	n := plan.Network(req.Network)
	return &n
}

// never are the addresses of the fleet's own server: no list opens them to a sandbox.
func (w *Worker) never() []netip.AddrPort {
	if w.fleet.Conn == nil {
		return nil
	}
	texts := append(w.fleet.Conn.Servers(), w.fleet.Conn.DiscoveredServers()...)
	var out []netip.AddrPort
	for _, text := range append(texts, w.fleet.Conn.ConnectedAddr()) {
		if _, rest, ok := strings.Cut(text, "://"); ok {
			text = rest
		}
		// One that is named is the connected one sooner or later; names are not resolved for this.
		if a, err := netip.ParseAddrPort(text[strings.LastIndexByte(text, '@')+1:]); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// lists refuses a list of hosts where steps can be kept from all of the network or none: the way to a list needs a
// network of the sandbox's own, that all its commands share.
func (w *Worker) lists(p *plan.Plan) error {
	if !p.Network.Listed() || w.report.Rung.Mounts() || w.report.Rung == isolate.RungBare {
		return nil
	}
	return refuse("unmet_isolation", "network: a list of hosts needs namespaces of the worker's own, and this worker has %s (%s): use none or allow, or run `warmfleet doctor` to see what is missing",
		w.report.Rung, w.report.RungWhy)
}

// networkNotes say where a list of hosts is not what it says.
func (w *Worker) networkNotes(p *plan.Plan) []string {
	if !p.Network.Listed() || w.report.Rung != isolate.RungBare {
		return nil
	}
	return []string{fmt.Sprintf("network: the list of hosts is not enforced: %s", w.report.Guarantees[isolate.Network].Why)}
}

// networkUse is what commands of a session reached of a list of hosts, and were refused, since the last call, and how many
// attempts were left out.
func networkUse(d egress.Decisions) (use []events.NetworkUse, more int) {
	for _, one := range d.List {
		use = append(use, events.NetworkUse{Host: one.Host, Port: int(one.Port), Verdict: string(one.Verdict), Why: one.Why, Count: one.Count})
	}
	return use, d.Others
}

// tellDenied says behind the output of a build's step what its network refused.
func tellDenied(w io.Writer, d egress.Decisions) {
	for _, one := range d.List {
		if one.Verdict != egress.Denied || w == nil {
			continue
		}
		to := "a request"
		if one.Host != "" {
			to = net.JoinHostPort(one.Host, strconv.Itoa(int(one.Port)))
		}
		fmt.Fprintf(w, "warmfleet: network refused %s: %s\n", to, one.Why)
	}
}
