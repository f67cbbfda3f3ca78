package mask

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"unicode"
)

const (
	// MinLength is the least that is masked, in bytes: what is shorter occurs everywhere.
	MinLength = 4
	// MinLine is the least that is masked of one line of a secret that has several.
	MinLine = 6
	// wrapped are the line lengths that programs break base64 at: coreutils and PEM.
	wrappedLong, wrappedShort = 76, 64
)

// patterns are all the forms in which a secret may be seen.
func patterns(secret []byte) []string {
	text := strings.TrimRight(string(secret), "\r\n") // the end of a file's line is no secret
	pieces := []string{text}
	if lines := strings.Split(text, "\n"); len(lines) > 1 {
		for _, line := range lines {
			if line = strings.TrimSpace(line); len(line) >= MinLine && strings.ContainsFunc(line, meaningful) {
				pieces = append(pieces, line)
			}
		}
	}
	seen := map[string]bool{}
	var out []string
	for _, piece := range pieces {
		if len(piece) < MinLength || !strings.ContainsFunc(piece, meaningful) {
			continue
		}
		for _, form := range forms(piece) {
			if len(form) >= MinLength && !seen[form] {
				seen[form] = true
				out = append(out, form)
			}
		}
	}
	return out
}

// meaningful tells what is not only layout.
func meaningful(r rune) bool { return !unicode.IsSpace(r) && !strings.ContainsRune("()[]{}<>", r) }

// forms are a piece as it is and encoded.
func forms(piece string) []string {
	out := []string{piece, url.QueryEscape(piece), url.PathEscape(piece)}
	for _, escaped := range []string{url.QueryEscape(piece), url.PathEscape(piece)} {
		out = append(out, lowerHex(escaped))
	}
	if quoted, err := json.Marshal(piece); err == nil {
		out = append(out, string(quoted[1:len(quoted)-1]))
	}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			out = append(out, aligned(e, piece, shift))
		}
		whole := aligned(e, piece, 0)
		for _, width := range []int{wrappedLong, wrappedShort} {
			for rest := whole; len(whole) > width && rest != ""; {
				line := rest[:min(width, len(rest))]
				rest = rest[len(line):]
				if len(line) >= MinLine {
					out = append(out, line)
				}
			}
		}
	}
	return out
}

// aligned is what the base64 of any text has in common that holds the piece after shift
// bytes, modulo 3: the characters that only depend on the piece.
func aligned(e *base64.Encoding, piece string, shift int) string {
	encoded := e.EncodeToString([]byte(strings.Repeat("\x00", shift) + piece))
	from, to := (shift*8+5)/6, (shift+len(piece))*8/6
	return encoded[from:to]
}

// lowerHex turns the capital letters of %XX small, as some encoders write them.
func lowerHex(escaped string) string {
	b := []byte(escaped)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], strings.ToLower(string(b[i+1:i+3])))
			i += 2
		}
	}
	return string(b)
}
