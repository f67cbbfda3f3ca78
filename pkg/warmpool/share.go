package warmpool

import "slices"

// Spread is what a fleet is to keep idle of one pool.
type Spread struct {
	// Target is for all workers together; their shares of it differ by at most one.
	Target int
	// Least is for each worker, also where its share is smaller: then all together keep more than Target.
	Least int
}

// Share is how many idle members self is to keep, when all of workers keep some: all who know the same workers come to
// shares that add up to the target, but for what Least adds. self counts as one of them, named or not.
func (s Spread) Share(workers []string, self string) int {
	all := append(slices.Clone(workers), self)
	slices.Sort(all)
	all = slices.Compact(all)
	share := s.Target / len(all)
	if at, _ := slices.BinarySearch(all, self); at < s.Target%len(all) {
		share++
	}
	return max(share, s.Least)
}
