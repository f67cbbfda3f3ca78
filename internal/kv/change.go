package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Change changes a record that is JSON of a T by compare-and-set: it reads the record, a zero T where there is none, lets change have
// it, and writes it if nobody else wrote meanwhile, else begins again. So change may be called several times. An error of
// change is returned as it is, and the record stays.
func Change[T any](ctx context.Context, b Bucket, key string, change func(*T) error) error {
	for {
		var v T
		e, err := b.Get(ctx, key)
		if err == nil {
			err = json.Unmarshal(e.Value, &v)
		} else if errors.Is(err, ErrNotFound) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("kv: read %q: %w", key, err)
		}
		if err := change(&v); err != nil {
			return err
		}
		value, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("kv: encode %q: %w", key, err)
		}
		if e.Revision == 0 {
			_, err = b.Create(ctx, key, value)
		} else {
			_, err = b.Update(ctx, key, value, e.Revision)
		}
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrExists) {
			return err
		}
	}
}
