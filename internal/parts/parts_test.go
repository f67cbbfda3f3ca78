package parts_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/internal/parts"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

const patience = 20 * time.Second

func TestRespond_AnySize(t *testing.T) {
	nc := eventstest.Server(t).Conn()
	svc, err := micro.AddService(nc, micro.Config{Name: "parts", Version: "0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Stop()
	err = svc.AddEndpoint("repeat", micro.HandlerFunc(func(r micro.Request) {
		n, _ := strconv.Atoi(string(r.Data()))
		if err := parts.Respond(r, strings.Repeat("x", n), nc.MaxPayload()); err != nil {
			t.Error(err)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1000, int(nc.MaxPayload()), 3 * int(nc.MaxPayload())} {
		inbox := nc.NewInbox()
		sub, err := nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest("repeat", inbox, []byte(strconv.Itoa(n))); err != nil {
			t.Fatal(err)
		}
		if got := joined(t, sub); got != strings.Repeat("x", n) {
			t.Errorf("got %d bytes, want %d", len(got), n)
		}
	}
}

// A refusal after the handler has returned races with nothing of the service: the race detector sees it otherwise.
func TestRefuse_AfterItsHandler(t *testing.T) {
	nc := eventstest.Server(t).Conn()
	svc, err := micro.AddService(nc, micro.Config{Name: "refuse", Version: "0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Stop()
	err = svc.AddEndpoint("refuse", micro.HandlerFunc(func(r micro.Request) {
		go parts.Refuse(r, api.CodeConflict, errors.New("not now"))
	}))
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		m, err := nc.Request("refuse", nil, patience)
		if err != nil || m.Header.Get(micro.ErrorCodeHeader) != api.CodeConflict || m.Header.Get(micro.ErrorHeader) != "not now" {
			t.Fatalf("got %v, %v", m, err)
		}
	}
}

// joined is a reply of as many messages as each of them says.
func joined(t *testing.T, sub *nats.Subscription) string {
	t.Helper()
	var all []byte
	for got, want := 0, 1; got < want; got++ {
		m, err := sub.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if want, err = strconv.Atoi(m.Header.Get(api.HeaderParts)); err != nil {
			t.Fatal(err)
		}
		all = append(all, m.Data...)
	}
	var reply string
	if err := json.Unmarshal(all, &reply); err != nil {
		t.Fatal(err)
	}
	return reply
}
