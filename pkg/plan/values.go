package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration written as text with units, as in "1h30m".
type Duration time.Duration

// String is the shortest text that reads back as d, as in "10m" for ten minutes.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads text with units; a bare number is an error.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil {
		*d = Duration(v)
		return nil
	}
	s := string(text)
	if _, numErr := strconv.ParseFloat(s, 64); numErr == nil {
		return fmt.Errorf("%q has no unit: write %q or %q", s, s+"s", s+"m")
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, numErr := strconv.Atoi(days); numErr == nil && n > 0 && n < 10000 {
			return fmt.Errorf("%q is not a duration: days are written in hours, %q", s, strconv.Itoa(n*24)+"h")
		}
	}
	return fmt.Errorf(`%q is not a duration: write a number and a unit, as in "90s", "10m" or "1h30m"`, s)
}

// The forms of a Network.
const (
	NetworkNone  = "none"
	NetworkAllow = "allow"
)

// Network is what a sandbox may reach: nothing, everything, or a list of hosts.
// In a plan it is the word none, the word allow, or the list.
type Network struct {
	// Mode is NetworkNone, NetworkAllow, or "" with a list.
	Mode string
	// Hosts are host (its ports 80 and 443), host:port, *.host for all below it, or addresses likewise: docs/network.md.
	Hosts []string
}

// Listed tells whether only hosts of a list can be reached.
func (n *Network) Listed() bool { return n != nil && n.Mode == "" }

// String is the word, or the list in one line.
func (n Network) String() string {
	if n.Mode != "" {
		return n.Mode
	}
	return "[" + strings.Join(n.Hosts, ", ") + "]"
}

// Same tells whether both let the same be reached: the order of a list, and the case of names, do not matter.
func (n Network) Same(other Network) bool {
	sorted := func(hosts []string) []string {
		out := make([]string, len(hosts))
		for i, h := range hosts {
			out[i] = strings.ToLower(h)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	return n.Mode == other.Mode && slices.Equal(sorted(n.Hosts), sorted(other.Hosts))
}

// MarshalJSON writes the word or the list.
func (n Network) MarshalJSON() ([]byte, error) {
	if n.Mode != "" {
		return json.Marshal(n.Mode)
	}
	if n.Hosts == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(n.Hosts)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (n *Network) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		*n = Network{Mode: word}
		return nil
	}
	var hosts []string
	if err := json.Unmarshal(b, &hosts); err != nil {
		return errors.New("plan: read network: want none, allow or a list of hosts")
	}
	*n = Network{Hosts: hosts}
	return nil
}

// UnixMode is the twelve permission bits of Mode, and false when the plan gives none.
func (w *WriteFile) UnixMode() (mode uint32, given bool) {
	v, err := strconv.ParseUint(w.Mode, 8, 12)
	if err != nil {
		return 0, false
	}
	return uint32(v), true
}
