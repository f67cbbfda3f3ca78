package plan

import (
	"fmt"
	"slices"
	"strings"
)

// nearest is the word closest to s in edits, or "" when none is close enough to be meant.
func nearest(s string, words []string) string {
	best, bestDistance := "", max(1, len(s)/3)+1
	folded := fold(s)
	for _, w := range words {
		if d := distance(folded, fold(w)); d < bestDistance {
			best, bestDistance = w, d
		}
	}
	return best
}

// fold makes Copy-On-Write and copy_on_write the same word.
func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }

// distance counts insertions, deletions, replacements and swaps of neighbours between two words.
func distance(first, second string) int {
	if len(first) > 64 || len(second) > 64 {
		return max(len(first), len(second))
	}
	a, b := []rune(first), []rune(second)
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// hint ends a message about an unknown word: the one that was meant, else all there are.
func hint(s string, words []string) string {
	if near := nearest(s, words); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	sorted := slices.Sorted(slices.Values(words))
	if len(sorted) == 0 {
		return "none is declared"
	}
	return "known: " + strings.Join(sorted, ", ")
}

// quote shows a value in a message, cut when it is long.
func quote(s string) string {
	const most = 60
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q...", strings.ToValidUTF8(s[:most], ""))
}
