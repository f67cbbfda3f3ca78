package api

import (
	"encoding/json"
	"errors"
)

// Network is what a sandbox may reach, as in a plan: the word none, the word allow, or a list of hosts. The zero Network leaves it to
// who makes the sandbox.
type Network struct {
	// Mode is none or allow, or "" with a list.
	Mode string
	// Hosts are as docs/network.md says.
	Hosts []string
}

// IsZero tells whether nothing is asked for.
func (n Network) IsZero() bool { return n.Mode == "" && n.Hosts == nil }

// MarshalJSON writes the word or the list.
func (n Network) MarshalJSON() ([]byte, error) {
	if n.Mode != "" {
		return json.Marshal(n.Mode)
	}
	return json.Marshal(n.Hosts)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (n *Network) UnmarshalJSON(b []byte) error {
	*n = Network{}
	if json.Unmarshal(b, &n.Mode) == nil {
		return nil
	}
	if json.Unmarshal(b, &n.Hosts) != nil {
		return errors.New("api: network: want none, allow or a list of hosts")
	}
	return nil
}
