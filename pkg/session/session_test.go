package session_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/session"
)

func TestState_Next(t *testing.T) {
	all := []session.State{session.Starting, session.Active, session.Ended, session.Expired, session.Failed, session.Lost}
	want := map[session.State][]session.State{
		session.Starting: {session.Active, session.Failed, session.Lost},
		session.Active:   {session.Ended, session.Expired, session.Failed, session.Lost},
	}
	for _, from := range all {
		var got []session.State
		for _, to := range all {
			if err := from.Next(to); err == nil {
				got = append(got, to)
			} else if !errors.Is(err, session.ErrTransition) {
				t.Errorf("%s -> %s: %v, want ErrTransition", from, to, err)
			}
		}
		if diff := cmp.Diff(got, want[from]); diff != "" {
			t.Errorf("exits of %s: %s", from, diff)
		}
	}
}

func TestState_SeenAsLostOnlyWhereItHadNotEnded(t *testing.T) {
	for recorded, want := range map[session.State]session.State{session.Active: session.Lost, session.Starting: session.Lost, session.Ended: session.Ended, session.Expired: session.Expired} {
		if got := session.Seen(recorded, true); got != want {
			t.Errorf("%s without its worker is %s, want %s", recorded, got, want)
		}
	}
}

func TestIdentity_Check(t *testing.T) {
	for name, ok := range map[string]bool{
		"": true, "D'A \"q\" $(touch x)": true, "Zoë": true, "tab\tin": true, " lead": false, "trail ": false, "J. Doe Jr.": false, "\"q\"": false,
		"a\nb": false, "a\x00b": false, "a<b": false, "a>b": false, " .,": false, "\xff": false, strings.Repeat("x", session.MaxIdentity+1): false,
	} {
		for _, i := range []session.Identity{{Name: name}, {Email: name}} {
			if err := i.Check(); (err == nil) != ok || err != nil && !errors.Is(err, session.ErrIdentity) {
				t.Errorf("%+q: %v, want ok %v", i, err, ok)
			}
		}
	}
}

func TestIdentity_EnvIsWhatGitPrints(t *testing.T) {
	want := `D'A $(touch x) "q" ; #`
	c := exec.Command("git", "config", "user.name")
	c.Dir, c.Env = t.TempDir(), append(session.Identity{Name: want, Email: "q@example.com"}.Env(), "HOME="+t.TempDir(), "PATH=/usr/bin:/bin")
	got, err := c.Output()
	if err != nil || string(got) != want+"\n" {
		t.Errorf("git config user.name: %q, %v, want %q", got, err, want)
	}
}

func TestTimeouts_UseExtendsUpToTheAbsolute(t *testing.T) {
	tm, err := session.ParseTimeouts("", "1h")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(0, 0)
	for used, want := range map[time.Duration]time.Duration{0: 30 * time.Minute, 20 * time.Minute: 50 * time.Minute, 45 * time.Minute: time.Hour} {
		if got := tm.Expires(start, start.Add(used)).Sub(start); got != want {
			t.Errorf("used after %s: expires after %s, want %s", used, got, want)
		}
	}
	for _, bad := range []string{"0s", "-1m", "25h", "x"} {
		if _, err := session.ParseTimeouts(bad, ""); !errors.Is(err, session.ErrTimeout) {
			t.Errorf("idle %q: %v, want ErrTimeout", bad, err)
		}
	}
}

func TestGate_WaitingCallsRunOnceInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g session.Gate
		var mu sync.Mutex
		var got, want []int
		var all sync.WaitGroup
		for i := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			all.Go(func() {
				leave, err := g.Enter(ctx, session.Run)
				if err != nil {
					return
				}
				defer leave()
				time.Sleep(time.Duration(20-i) * time.Millisecond) // later ones would overtake
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
			})
			synctest.Wait()
			if i%5 == 3 {
				cancel()
				synctest.Wait()
			} else {
				want = append(want, i)
				defer cancel()
			}
		}
		if len(got) > 0 {
			t.Fatalf("ran before the gate was opened: %v", got)
		}
		g.Open()
		all.Wait()
		if diff := cmp.Diff(got, want); diff != "" {
			t.Error(diff)
		}
	})
}

func TestGate_ShutFailsWhatWaitsWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g session.Gate
		why := errors.New("remote is gone")
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if _, err := g.Enter(t.Context(), session.Run); !errors.Is(err, why) || !errors.Is(err, session.ErrShut) {
					t.Errorf("got %v, want the reason", err)
				}
			})
		}
		synctest.Wait()
		g.Shut(why)
		all.Wait()
		g.Open()
		if _, err := g.Enter(t.Context(), session.Run); !errors.Is(err, why) {
			t.Errorf("after it was shut: %v, want the reason", err)
		}
	})
}

// What goes beside what.
func TestGate_Kinds(t *testing.T) {
	names := map[session.Kind]string{session.Run: "run", session.Write: "write", session.Save: "save", session.Alone: "alone"}
	beside := map[[2]session.Kind]bool{
		{session.Run, session.Run}: true, {session.Run, session.Write}: true, {session.Run, session.Save}: true,
		{session.Write, session.Run}: true, {session.Write, session.Write}: true,
	}
	for first := range names {
		for second := range names {
			t.Run(names[first]+"-"+names[second], func(t *testing.T) {
				var g session.Gate
				g.Open()
				leave, err := g.Enter(t.Context(), first)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := g.Saves(), beside[[2]session.Kind{first, session.Save}]; got != want {
					t.Errorf("a save could run: got %v, want %v", got, want)
				}
				ticket, err := g.Join(second)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := g.Waiting() == 0, beside[[2]session.Kind{first, second}]; got != want {
					t.Errorf("has its turn beside the first: got %v, want %v", got, want)
				}
				leave()
				if leave, err = ticket.Wait(t.Context()); err != nil || g.Running(second) != 1 {
					t.Fatalf("after the first: got %v, %d run", err, g.Running(second))
				}
				leave()
				if !g.Idle() {
					t.Error("not idle at the end")
				}
			})
		}
	}
}

// A save goes ahead of what waits, but not beside what it must not; before the gate is opened it waits like all.
func TestGate_Ahead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g session.Gate
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.Ahead(ctx, session.Save); !errors.Is(err, context.DeadlineExceeded) || !g.Idle() {
			t.Errorf("before it was opened: got %v, idle %v", err, g.Idle())
		}
		g.Open()
		stop, err := g.Enter(t.Context(), session.Run)
		if err != nil {
			t.Fatal(err)
		}
		rollback, err := g.Join(session.Alone)
		if err != nil {
			t.Fatal(err)
		}
		leave, err := g.Ahead(t.Context(), session.Save)
		if err != nil || g.Waiting() != 1 {
			t.Fatalf("got %v, %d wait; want it ahead of the one that waits", err, g.Waiting())
		}
		leave()
		stop()
		if _, err := rollback.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g.Saves() {
			t.Error("a save could run beside a rollback")
		}
		g.Shut(errors.New("over"))
		if _, err := g.Ahead(t.Context(), session.Save); !errors.Is(err, session.ErrShut) {
			t.Errorf("after it was shut: got %v", err)
		}
	})
}

// The model: nothing runs beside what it must not, calls that waited keep their order, each that was not cancelled runs once.
func TestGate_Model(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var g session.Gate
			var mu sync.Mutex
			running, waited := map[session.Kind]int{}, 0 // of those, calls that had waited
			var order, early []int
			ran := map[int]int{}
			var all sync.WaitGroup
			cancelled := map[int]bool{}
			opened := 5 + r.IntN(10)
			for i := range 30 {
				if i == opened {
					g.Open()
				}
				kind, work := session.Kind(r.IntN(4)), time.Duration(r.IntN(5))*time.Millisecond
				before := map[bool]int{true: 1}[i < opened]
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				all.Go(func() {
					leave, err := g.Enter(ctx, kind)
					if err != nil {
						return
					}
					mu.Lock()
					if now := running; i < opened && waited > 0 || now[session.Alone] > 0 || kind != session.Run && now[session.Save] > 0 ||
						kind == session.Save && now[session.Write] > 0 || kind == session.Alone && now[session.Run]+now[session.Write] > 0 {
						t.Errorf("seed %d: call %d of kind %d runs beside %v", seed, i, kind, now)
					}
					running[kind]++
					waited += before
					ran[i]++
					order = append(order, i)
					mu.Unlock()
					time.Sleep(work)
					mu.Lock()
					running[kind]--
					waited -= before
					mu.Unlock()
					leave()
				})
				synctest.Wait()
				if i < opened && r.IntN(4) == 0 {
					cancelled[i] = true
					cancel()
				}
				if i >= opened {
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
				}
			}
			all.Wait()
			for i := range 30 {
				if want := map[bool]int{true: 0, false: 1}[cancelled[i]]; ran[i] != want {
					t.Errorf("seed %d: call %d ran %d times, want %d", seed, i, ran[i], want)
				}
			}
			for _, i := range order {
				if i < opened {
					early = append(early, i)
				}
			}
			if !slices.IsSorted(early) || !g.Idle() {
				t.Errorf("seed %d: what waited ran as %v, idle %v", seed, early, g.Idle())
			}
		})
	}
}
