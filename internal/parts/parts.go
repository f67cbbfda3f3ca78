// Package parts answers requests of micro services in as many messages as the server's limit on one asks for.
//
// It must not know what is answered. Package client joins the messages.
package parts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/pkg/api"
)

// headerRoom is what a message's headers may take of the server's limit, in bytes.
const headerRoom = 1024

// Respond answers with reply as JSON. Each message says in api.HeaderParts how many they are; most is the server's limit
// on one, in bytes. On an error that is about the reply itself nothing was sent.
func Respond(r micro.Request, reply any, most int64) error {
	b, err := json.Marshal(reply)
	if err != nil {
		return fmt.Errorf("parts: encode reply: %w", err)
	}
	all := Split(b, most)
	for _, part := range all {
		if err := r.Respond(part, micro.WithHeaders(micro.Headers{api.HeaderParts: {strconv.Itoa(len(all))}})); err != nil {
			return fmt.Errorf("parts: reply: %w", err)
		}
	}
	return nil
}

// Refuse answers with an error, in the headers of a service's error. Unlike Error of the request it may be called after the
// handler has returned: the service reads then what Error writes. It does not count in the service's statistics.
func Refuse(r micro.Request, code string, why error) {
	r.Respond(nil, micro.WithHeaders(micro.Headers{micro.ErrorHeader: {why.Error()}, micro.ErrorCodeHeader: {code}}))
}

// Split cuts b into what fits into messages beside their headers; nothing is one empty part. most is as in Respond.
func Split(b []byte, most int64) [][]byte {
	if len(b) == 0 {
		return [][]byte{nil}
	}
	return slices.Collect(slices.Chunk(b, max(int(most)-headerRoom, headerRoom)))
}
