package objectstore

import (
	"context"
	"fmt"
	"time"
)

// Clock implements Marker.
func (m *Memory) Clock(context.Context) (time.Time, error) { return time.Now().UTC(), nil }

// Mark implements Marker.
func (m *Memory) Mark(_ context.Context, o Info) (Info, error) {
	info, err := m.rewrite(o, func(i *Info) { i.Marked = time.Now().UTC() })
	if err != nil {
		return Info{}, failed("mark", o.Name, err)
	}
	return info, nil
}

// Quarantine implements Marker.
func (m *Memory) Quarantine(_ context.Context, o Info, reason string) error {
	_, err := m.rewrite(o, func(i *Info) { i.Marked, i.Quarantined = time.Time{}, reason[:min(len(reason), maxReason)] })
	if err != nil {
		return failed("quarantine", o.Name, err)
	}
	return nil
}

// Spare implements Marker.
func (m *Memory) Spare(ctx context.Context, name string) (Info, error) {
	for {
		info, err := m.Stat(ctx, name)
		if err != nil || info.Marked.IsZero() {
			return info, err
		}
		if info, err = m.rewrite(info, func(i *Info) { i.Marked = time.Time{} }); err == nil {
			return info, nil
		}
	}
}

// Reap implements Marker.
func (m *Memory) Reap(_ context.Context, o Info) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have, ok := m.objects[o.Name]; !ok || have.info.Version != o.Version || have.info.Marked.IsZero() {
		return failed("reap", o.Name, ErrChanged)
	}
	delete(m.objects, o.Name)
	return nil
}

// rewrite changes an object's description if it still is the version of o.
func (m *Memory) rewrite(o Info, change func(*Info)) (Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.objects[o.Name]
	if !ok || have.info.Version != o.Version {
		return Info{}, ErrChanged
	}
	m.version++
	have.info.Version = m.version
	change(&have.info)
	m.objects[o.Name] = have
	return have.info, nil
}

// usable fails for an object in quarantine.
func (o memoryObject) usable() error {
	if why := o.info.Quarantined; why != "" {
		return fmt.Errorf("%w: in quarantine: %s", ErrCorrupt, why)
	}
	return nil
}
