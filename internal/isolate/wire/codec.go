package wire

import (
	"encoding/binary"
	"errors"
)

var errTruncated = errors.New("wire: truncated message")

// Body is a message that can be sent. One field list serves both directions.
type Body interface {
	fields(*codec)
}

// codec appends fields to buf, or takes them from it when read is set.
type codec struct {
	buf  []byte
	read bool
	err  error
}

// Encode is the body of a frame, for what is not sent by a Conn.
func Encode(b Body) []byte { return encode(b, nil) }

func encode(b Body, buf []byte) []byte {
	if b == nil {
		return buf
	}
	c := codec{buf: buf}
	b.fields(&c)
	return c.buf
}

// Decode fills b from the body of a frame. Byte slices alias the frame.
func (f Frame) Decode(b Body) error {
	c := codec{buf: f.Body, read: true}
	b.fields(&c)
	return c.err
}

func (c *codec) uint(v *uint64) {
	if !c.read {
		c.buf = binary.AppendUvarint(c.buf, *v)
		return
	}
	x, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.buf = x, c.buf[n:]
}

func (c *codec) int(v *int64) {
	u := uint64(*v)
	c.uint(&u)
	*v = int64(u)
}

func (c *codec) bool(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	c.uint(&u)
	*v = u != 0
}

func (c *codec) bytes(v *[]byte) {
	n := uint64(len(*v))
	c.uint(&n)
	if !c.read {
		c.buf = append(c.buf, *v...)
		return
	}
	if n > uint64(len(c.buf)) {
		c.fail()
		return
	}
	*v, c.buf = c.buf[:n:n], c.buf[n:]
}

func (c *codec) string(v *string) {
	b := []byte(*v)
	c.bytes(&b)
	*v = string(b)
}

func (c *codec) strings(v *[]string) {
	n := uint64(len(*v))
	c.uint(&n)
	if n > uint64(len(c.buf)) && c.read {
		c.fail()
		return
	}
	if c.read {
		*v = make([]string, n)
	}
	for i := range *v {
		c.string(&(*v)[i])
	}
}

// list sends or takes a list of messages.
func list[T any](c *codec, items []T, fields func(*T, *codec)) []T {
	n := uint64(len(items))
	c.uint(&n)
	if c.read {
		if n > uint64(len(c.buf)) {
			c.fail()
			return nil
		}
		items = make([]T, n)
	}
	for i := range items {
		fields(&items[i], c)
	}
	return items
}

func (c *codec) fail() {
	c.buf = nil
	if c.err == nil {
		c.err = errTruncated
	}
}
