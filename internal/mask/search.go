package mask

// NewSearch makes a set to look for secrets with, in all forms that are masked and have at least so many bytes: a shorter one
// is found in what never saw the secret.
func NewSearch(least int, secrets ...[]byte) *Set {
	s := &Set{nodes: make([]node, 1)}
	var all []string
	for _, value := range secrets {
		for _, p := range patterns(value) {
			if len(p) >= least {
				s.add(p)
				all = append(all, p)
			}
		}
	}
	s.link()
	s.skip = newSkipper(all)
	return s
}

// Search is a writer that looks for secrets in what is written to it, across the borders of writes, and keeps nothing of it.
// It is not safe for concurrent use.
type Search struct {
	set   *Set
	state int32
	found bool
}

// Search returns a new search.
func (s *Set) Search() *Search { return &Search{set: s} }

// Found tells whether a secret was written since the search was made, or since the last Reset.
func (f *Search) Found() bool { return f.found }

// Reset begins anew, so that what is written next continues nothing.
func (f *Search) Reset() { f.state, f.found = 0, false }

// Write implements io.Writer; it never fails.
func (f *Search) Write(p []byte) (int, error) {
	if f.found || f.set.Empty() {
		return len(p), nil
	}
	for i := 0; i < len(p); i++ {
		if f.state == 0 {
			if i += f.set.quiet(p[i:]); i == len(p) {
				break
			}
		}
		f.state = f.set.step(f.state, p[i])
		if f.set.nodes[f.state].match > 0 {
			f.found = true
			break
		}
	}
	return len(p), nil
}
