package worker

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// greeter is a server of this machine's loopback.
func greeter(t *testing.T) (at, port string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))
	t.Cleanup(srv.Close)
	at = srv.Listener.Addr().String()
	_, port, _ = net.SplitHostPort(at)
	return at, port
}

// connect is a step that asks the proxy for a tunnel and prints the first line of the answer; it fails unless it gets one.
func connect(to string) string {
	return fmt.Sprintf(`{shell: [bash, -euc], run: 'p=${http_proxy#http://}; exec 3<>/dev/tcp/${p%%:*}/${p##*:}; printf "CONNECT %s HTTP/1.1\r\n\r\n" >&3; read -r l <&3; echo "$l"; [[ $l == *" 200 "* ]]'}`, to)
}

// A step with a list reaches what is in it, and what it was refused is in its event, in the plan's view and in its error.
func TestWorker_NetworkList(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at, port := greeter(t)
	_, other := greeter(t)
	r.worker(t, "w1")
	w := r.submit(t, "network: ['"+at+"', refused.example]\nsteps:\n"+
		"  - "+connect(at)+"\n"+
		"  - {continue_on_error: true, run: 'true'}\n"+
		"  - "+connect("127.0.0.1:"+other)+"\n")
	id := w.PlanID()
	end := r.ends(t, id, events.StateFailed)
	if got, want := end.Error, "step \"step-3\": exit code 1; refused by the plan's network: 127.0.0.1:"+other+": it is not in the list"; got != want {
		t.Errorf("got error %q, want %q", got, want)
	}
	records, err := r.fleet.Log.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	view := events.BuildView(records)
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	want := [][]events.NetworkUse{
		{{Host: "127.0.0.1", Port: number(port), Verdict: "allowed", Count: 1}},
		nil,
		{{Host: "127.0.0.1", Port: number(other), Verdict: "denied", Why: "it is not in the list", Count: 1}},
	}
	for i, s := range view.Steps {
		if d := cmp.Diff(s.Network, want[i]); d != "" {
			t.Errorf("step %d (-got +want)\n%s", i+1, d)
		}
	}
}

// Warm sandboxes of a pool with a list are used by plans with the same list, or none of their own, and by no others.
func TestPool_NetworkList(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	at, _ := greeter(t)
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"plan_network":["`+at+`","b.example"]`)
	step := "apply: never\nsteps:\n  - " + connect(at) + "\n"
	for _, tc := range []struct{ name, network, source, note string }{
		{"ThePools", "", events.SourceWarm, ""},
		{"TheSame", "network: [B.example, '" + at + "']\n", events.SourceWarm, ""},
		{"Less", "network: ['" + at + "']\n", events.SourceCold, "cold: network [" + at + "]: warm sandboxes of this pool are made with [" + at + ", b.example]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.warm(t, w, "one warm", idle(1))
			plan := p.plan(t, tc.network+step)
			p.ends(t, plan.PlanID(), events.StateExecuted)
			claim := p.claimOf(t, plan.PlanID())
			if claim.Source != tc.source || !strings.Contains(strings.Join(claim.Notes, "\n"), tc.note) || tc.note == "" && len(claim.Notes) > 0 {
				t.Errorf("source %s, notes %q, want %s and %q", claim.Source, claim.Notes, tc.source, tc.note)
			}
		})
	}
	p.warm(t, w, "one warm", idle(1))
	none := p.plan(t, "network: none\napply: never\nsteps: [{run: 'test -z \"${http_proxy-}\"'}]\n")
	p.ends(t, none.PlanID(), events.StateExecuted)
	if claim := p.claimOf(t, none.PlanID()); claim.Source != events.SourceCold {
		t.Errorf("source %s, want cold", claim.Source)
	}
}

// What the format of plans takes as a host, the proxy can enforce.
func TestNetworkList_SameGrammar(t *testing.T) {
	for _, entry := range []string{
		"host", "a.b.example", "A.b:443", "10.0.0.1", "10.0.0.1:80", "::1", "[::1]:80", "*.example.com", "*.example.com:8443", "::ffff:10.0.0.1",
		"127.1", "0x7f.1", "1.2.3.4.5", "a.", "a_b", "a:0", "a:080", "[::1]", "fe80::1%lo", "*", "*.10.0.0.1", "bücher.example", strings.Repeat("a", 64), "1.2.3.4:0", "xn--bcher-kva.example", "a:+80", "*.*.a", "1a", "a.1a", "*.5",
	} {
		_, err := plan.ParseJSON([]byte(fmt.Sprintf(`{"version":1,"name":"n","resource":{"repo":"https://h/x"},"network":[%q],"steps":[{"run":"true"}]}`, entry)))
		if _, refused := egress.ParseRules([]string{entry}); err == nil && refused != nil {
			t.Errorf("%q: a plan can have it, the proxy can't: %v", entry, refused)
		}
	}
}
