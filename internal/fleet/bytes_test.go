package fleet_test

import (
	"testing"

	"github.com/warmfleet/warmfleet/internal/fleet"
)

func TestBytes_Set(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "17B": 17, "500KiB": 500 << 10, "3 MiB": 3 << 20, "10GiB": 10 << 30, "2TiB": 2 << 40, "-1": -1,
	} {
		var got fleet.Bytes
		if err := got.Set(text); err != nil || int64(got) != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "10GB", "1.5GiB", "9999999TiB", "GiB"} {
		var got fleet.Bytes
		if err := got.Set(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

func TestBytes_String(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1: "1B", 1000: "1000B", 20 << 30: "20GiB", 1<<20 + 1: "1048577B", -1: "-1B"} {
		b := fleet.Bytes(n)
		if got := b.String(); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
