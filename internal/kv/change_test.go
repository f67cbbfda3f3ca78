package kv_test

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/warmfleet/warmfleet/internal/kv"
)

func TestChange_LosesNoWrite(t *testing.T) {
	const writers, each = 8, 25
	b := kv.NewMemory()
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				if err := kv.Change(t.Context(), b, "n", func(n *int) error { *n++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := number(t, b); got != writers*each {
		t.Errorf("got %d, want %d", got, writers*each)
	}
	no := errors.New("no")
	if err := kv.Change(t.Context(), b, "n", func(n *int) error { *n = 0; return no }); err != no {
		t.Errorf("got %v, want the error of change as it is", err)
	}
	if got := number(t, b); got != writers*each {
		t.Errorf("after an error of change: got %d, want %d", got, writers*each)
	}
}

func number(t *testing.T, b kv.Bucket) (n int) {
	t.Helper()
	e, err := b.Get(t.Context(), "n")
	if err == nil {
		err = json.Unmarshal(e.Value, &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}
