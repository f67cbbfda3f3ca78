package executor

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// toldDenied is how many refusals the message of a failed step names.
const toldDenied = 3

// Reached is a sandbox whose network is a list of hosts, and which tells what became of attempts since the last call.
type Reached interface {
	Decisions() egress.Decisions
}

// network is what was reached, and refused, since the last call; nothing where the sandbox has no list.
func (r *run) network() ([]events.NetworkUse, int) {
	s, ok := r.Sandbox.(Reached)
	if !ok {
		return nil, 0
	}
	d := s.Decisions()
	var use []events.NetworkUse
	for _, one := range d.List {
		use = append(use, events.NetworkUse{
			Host: r.Mask.Text(one.Host), Port: int(one.Port), Verdict: string(one.Verdict), Why: r.Mask.Text(one.Why), Count: one.Count,
		})
	}
	return use, d.Others
}

// withDenied adds to the message of a failed step what its network refused: most likely that is why.
func withDenied(msg string, use []events.NetworkUse) string {
	var told []string
	denied := 0
	for _, u := range use {
		if u.Verdict != events.NetworkDenied {
			continue
		}
		if denied++; denied > toldDenied {
			continue
		}
		if u.Host == "" {
			told = append(told, u.Why)
			continue
		}
		told = append(told, fmt.Sprintf("%s: %s", net.JoinHostPort(u.Host, strconv.Itoa(u.Port)), u.Why))
	}
	if denied == 0 {
		return msg
	}
	if more := denied - len(told); more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return msg + "; refused by the plan's network: " + strings.Join(told, ", ")
}
