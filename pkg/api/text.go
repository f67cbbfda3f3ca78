package api

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"
)

// textEscape introduces bytes that are not UTF-8, which JSON cannot hold; no path or argument has a NUL.
const textEscape = "\x00b64:"

// Text is a path, name or argument as requests and replies of sessions have it: as it is, or where it is not UTF-8 a NUL, "b64:" and
// its bytes in base64.
func Text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return textEscape + base64.StdEncoding.EncodeToString([]byte(s))
}

// OfText is what Text made a text of.
func OfText(text string) (string, error) {
	encoded, escaped := strings.CutPrefix(text, textEscape)
	if !escaped {
		return text, nil
	}
	b, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("api: read text %q: %w", text, err)
	}
	return string(b), nil
}
