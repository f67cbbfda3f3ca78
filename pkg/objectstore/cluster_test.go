package objectstore_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

// startCluster runs three servers that replicate among themselves.
func startCluster(t *testing.T) []*server.Server {
	t.Helper()
	var ports []int
	var routes []*url.URL // JetStream wants them before the first server starts
	for len(ports) < 3 {
		// Below what the kernel gives to those who ask for any: nobody takes it before the server does.
		port := 20_000 + rand.IntN(12_000)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil || slices.Contains(ports, port) {
			continue
		}
		must(t, l.Close())
		ports = append(ports, port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: addr})
	}
	var servers []*server.Server
	for i, port := range ports {
		servers = append(servers, startServer(t, func(o *server.Options) {
			o.ServerName = fmt.Sprint("n", i)
			o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port}
			o.Routes = routes
		}))
	}
	return servers
}

// What one client stored, another reads at once from any replica: one that lags behind
// does not make an object missing or corrupt.
func TestJetStream_Replicated(t *testing.T) {
	servers := startCluster(t)
	js := connect(t, servers[0].ClientURL())
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: bucket, Replicas: 3})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster does not form: %v", err)
		}
	}
	var stores []*objectstore.JetStream
	for _, s := range servers {
		stores = append(stores, openStore(t, connect(t, s.ClientURL()), objectstore.Options{}))
	}
	for i := range 12 {
		name := fmt.Sprint("x", i)
		data := objectstoretest.Bytes(uint64(i), 1_100_000)
		objectstoretest.Put(t, stores[i%3], name, data)
		for _, s := range stores {
			if _, err := s.Stat(t.Context(), name); err != nil {
				t.Errorf("Stat: %v", err)
			}
			objectstoretest.Check(t, s, name, data)
		}
		if err := stores[(i+1)%3].Delete(t.Context(), name); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
	if n := messages(t, js, "$O."+bucket+".C.>"); n != 0 {
		t.Errorf("%d chunks are left", n)
	}
}
