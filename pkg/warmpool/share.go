package warmpool

import "slices"

// Share is how many of target idle members self is to keep, when all of workers keep some: all who know the same workers come to
// shares that add up to the target and differ by at most one. self counts as one of them, named or not.
func Share(target int, workers []string, self string) int {
	all := append(slices.Clone(workers), self)
	slices.Sort(all)
	all = slices.Compact(all)
	share := target / len(all)
	if at, _ := slices.BinarySearch(all, self); at < target%len(all) {
		share++
	}
	return share
}
