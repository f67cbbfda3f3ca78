package diff

import (
	"fmt"
	"strings"
)

// Stat is a summary for people: a line for each changed path and one with the sums.
func (d Diff) Stat() string {
	var b strings.Builder
	insertions, deletions := 0, 0
	for _, f := range d.Files {
		insertions += f.Insertions
		deletions += f.Deletions
		name := Quote(string(f.Path))
		if f.From != "" {
			name = Quote(string(f.From)) + " => " + name
		}
		fmt.Fprintf(&b, " %s | %s\n", name, f.what())
	}
	fmt.Fprintf(&b, " %d changed, %d insertions(+), %d deletions(-)\n", len(d.Files), insertions, deletions)
	return b.String()
}

func (f File) what() string {
	switch {
	case f.Omitted:
		return string(f.Status) + ", not shown"
	case f.Binary:
		return fmt.Sprintf("%s, binary %d -> %d bytes", f.Status, f.OldSize, f.NewSize)
	case f.Insertions == 0 && f.Deletions == 0:
		return string(f.Status)
	}
	return fmt.Sprintf("%s +%d -%d", f.Status, f.Insertions, f.Deletions)
}
