package diff

import (
	"fmt"
	"strings"
)

// Quote writes a name as git does by default (core.quotePath): in double quotes with octal escapes if it holds
// a control character, a quote, a backslash or a byte that is not ASCII.
func Quote(name string) string {
	plain := func(c byte) bool { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\' }
	clean := true
	for i := range len(name) {
		clean = clean && plain(name[i])
	}
	if clean {
		return name
	}
	short := map[byte]string{
		'\a': `\a`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\v': `\v`, '\f': `\f`, '\r': `\r`, '"': `\"`, '\\': `\\`,
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		c := name[i]
		switch s, has := short[c]; {
		case has:
			b.WriteString(s)
		case plain(c):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\%03o`, c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// spaced ends a name that holds a space with a tab, as git does, so that readers see where it ends.
func spaced(name string) string {
	if strings.Contains(name, " ") && name[0] != '"' {
		return name + "\t"
	}
	return name
}
