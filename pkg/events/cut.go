package events

import "unicode/utf8"

// jsonCost is how many bytes encoding/json may take for a rune of a string, HTML escaping included.
func jsonCost(r rune, size int) int {
	switch {
	case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t' || r == '\b' || r == '\f':
		return 2
	case r < 0x20 || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
		return 6
	case r == utf8.RuneError && size == 1:
		return 6
	}
	return size
}

// cut returns the longest prefix of s, in whole runes, that takes at most limit bytes inside a
// JSON string, and whether that is less than s.
func cut(s string, limit int) (string, bool) {
	used := 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		used += jsonCost(r, size)
		if used > limit {
			return s[:i], true
		}
		i += size
	}
	return s, false
}

// truncate is cut for messages: it marks what was cut off.
func truncate(s string, limit int) string {
	short, was := cut(s, limit)
	if was {
		return short + "..."
	}
	return short
}
