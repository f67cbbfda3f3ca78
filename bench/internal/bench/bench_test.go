package bench

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSamples_Quantile(t *testing.T) {
	hundred := Samples{}
	for i := 100; i > 0; i-- {
		hundred = append(hundred, float64(i))
	}
	for _, c := range []struct {
		s    Samples
		q    float64
		want float64
	}{{nil, 0.5, 0}, {Samples{7}, 0.99, 7}, {Samples{3, 1, 2}, 0.5, 2}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}} {
		if got := c.s.Quantile(c.q); got != c.want {
			t.Errorf("quantile %g of %d samples: %g, want %g", c.q, len(c.s), got, c.want)
		}
	}
}

func TestEnv_Add(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Result
		want string
	}{
		{
			"Alone",
			Result{What: "w", Ours: Samples{1, 2, 3}},
			`{"bench":"b","what":"w","unit":"ms","n":3,"p50":2,"p99":3,"peer":"","peer_p50":null,"ratio":null,"target":"","met":null}`,
		},
		{
			"Met",
			Result{What: "w", Ours: Samples{2}, Peer: "p", Theirs: Samples{8}, Target: Target{P50: 2, Ratio: 0.5}},
			`{"bench":"b","what":"w","unit":"ms","n":1,"p50":2,"p99":2,"peer":"p","peer_p50":8,"ratio":0.25,"target":"p50 <= 2 ms, ratio <= 1/2","met":true}`,
		},
		{
			"Missed",
			Result{What: "w", Ours: Samples{2, 2, 9}, Unit: "s", Target: Target{P50: 2, Max: 8}},
			`{"bench":"b","what":"w","unit":"s","n":3,"p50":2,"p99":9,"peer":"","peer_p50":null,"ratio":null,"target":"p50 <= 2 s, max <= 8 s","met":false}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got, want any
			e := &Env{name: "b", emit: func(r Row) error {
				b, err := json.Marshal(r)
				return errors.Join(err, json.Unmarshal(b, &got), json.Unmarshal([]byte(c.want), &want))
			}}
			if err := e.Add(c.r); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("row (-want +got):\n%s", d)
			}
		})
	}
}

func TestInTurn_AlternatesAndDropsTheFirstRound(t *testing.T) {
	var order string
	timed := func(name string) Timed {
		return func(context.Context) (time.Duration, error) {
			order += name
			return time.Duration(len(order)) * time.Millisecond, nil
		}
	}
	got, err := InTurn(t.Context(), 2, timed("a"), timed("b"))
	if err != nil {
		t.Fatal(err)
	}
	if order != "ababab" {
		t.Errorf("order %q, want ababab", order)
	}
	if d := cmp.Diff([]Samples{{3, 5}, {4, 6}}, got); d != "" {
		t.Errorf("samples (-want +got):\n%s", d)
	}
}

func TestSummary(t *testing.T) {
	yes, no := true, false
	rows := []Row{{Met: &yes}, {Met: &no}, {}, {Met: &yes}}
	if got, want := summary(rows), "1 of 3 targets missed"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
