package events

// NetworkUse is that something reached a port of a host of its list, or tried to: never what was said.
type NetworkUse struct {
	Host    string `json:"host" jsonschema:"description=empty for a request that could not be read"`
	Port    int    `json:"port"`
	Verdict string `json:"verdict" jsonschema:"enum=allowed,enum=denied,enum=failed,description=failed is allowed but not reached"`
	Why     string `json:"why,omitempty" jsonschema:"description=for people; absent where it was allowed"`
	Count   int    `json:"count" jsonschema:"description=how often"`
}

// Verdicts. Denied is what is not in the list, or must not be reached though it is.
const (
	NetworkAllowed = "allowed"
	NetworkDenied  = "denied"
)

// shrunk returns the entry with texts of at most n bytes.
func (u NetworkUse) shrunk(n int) NetworkUse {
	u.Host, u.Why = truncate(u.Host, n), truncate(u.Why, n)
	return u
}
