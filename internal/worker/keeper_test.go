package worker

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// An idle sandbox that was freshened often is replaced before it has too many layers, and the one that takes its place is fresh.
func TestKeeper_FreshensAndReplaces(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v0")
	p.image(t, "true >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"1h"`)
	p.warm(t, w, "one warm", idle(1))
	k := w.pooling.keeper("api")
	for i := range maxSynced {
		p.push(t, fmt.Sprint("v", i+1))
		k.freshen(t.Context())
	}
	if s := k.stats(); s.Wasted != 0 || s.Idle != 1 || s.Behind != 0 {
		t.Fatalf("after %d syncs: %+v, want the same one", maxSynced, s)
	}
	commit := p.push(t, "last")
	k.freshen(t.Context())
	k.warm.Check()
	s := p.warm(t, w, "another in its place", func(s events.Warm) bool { return s.Wasted == 1 && s.Idle == 1 })
	if s.Commit != commit || s.Error != "" || s.Hits+s.Misses != 0 {
		t.Errorf("got %+v, want one at %s", s, commit)
	}
	k.warm.Each(func(b *warmBox) {
		if n := len(b.sb.Chain()) - b.below; n != 1 {
			t.Errorf("the new one has %d layers of syncs, want one", n)
		}
	})
}

// What a pool says of its remote is what came of the last fetch, whoever needed it; a fetch of another ref says nothing.
func TestKeeper_SaysHowTheLastFetchWent(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	w, _ := p.worker(t, "w1")
	k := newKeeper(w, "api", nil) // which nobody runs
	k.change(func(s *keeping) {
		s.spec.Resource.Repo = p.repo
		s.spec.Defaults()
	})
	remote := k.remote(poolClaim{})
	other := gitrepo.Remote{URL: remote.URL, Ref: "none"}
	if _, err := k.sync(t.Context(), other); err == nil || k.stats().Error != "" {
		t.Errorf("after a fetch of another ref: %v, the pool says %q", err, k.stats().Error)
	}
	if err := os.Rename(p.repo, p.repo+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.sync(t.Context(), remote); err == nil || k.stats().Error != err.Error() || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, the pool says %q", err, k.stats().Error)
	}
	if err := os.Rename(p.repo+".away", p.repo); err != nil {
		t.Fatal(err)
	}
	if _, err := k.sync(t.Context(), remote); err != nil || k.stats().Error != "" {
		t.Errorf("got %v, the pool says %q", err, k.stats().Error)
	}
}
