package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// errAbsent means that the management API answered "not found": the broker has no object
// with this name.
var errAbsent = errors.New("not found")

// management is a client of RabbitMQ's management API.
type management struct {
	base  *url.URL
	vhost string
}

// management returns a client of the API at --management-url. Without this flag, the
// client uses port 15672 of the host in --amqp-url.
func (d *doctor) management() (*management, error) {
	broker, err := amqp091.ParseURI(d.app.settings.amqpURL)
	if err != nil {
		return nil, errors.New("the broker's address is invalid")
	}
	base := &url.URL{Scheme: "http", Host: net.JoinHostPort(broker.Host, "15672")}
	if d.app.settings.managementURL != "" {
		if base, err = url.Parse(d.app.settings.managementURL); err != nil || base.Host == "" {
			return nil, usagef("--management-url must be http:// or https://host:port (it is not shown, it may contain a password)")
		}
	}
	if base.User == nil {
		base.User = url.UserPassword(broker.Username, broker.Password)
	}
	return &management{base, broker.Vhost}, nil
}

// managementTimeout is the timeout of one request to the management API.
const managementTimeout = 2 * time.Second

// get requests a path of the API, and decodes the response into target. The elements of
// path are the parts between the slashes. A slash within an element is escaped, because
// names of queues may contain slashes.
func (m *management) get(ctx context.Context, target any, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, managementTimeout)
	defer cancel()
	for i := range path {
		path[i] = url.PathEscape(path[i])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		(&url.URL{Scheme: m.base.Scheme, Host: m.base.Host}).String()+m.base.EscapedPath()+"/api/"+strings.Join(path, "/"), http.NoBody)
	if err != nil {
		return err
	}
	password, _ := m.base.User.Password()
	request.SetBasicAuth(m.base.User.Username(), password)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(response.Body).Decode(target)
	case http.StatusNotFound:
		return errAbsent
	}
	return fmt.Errorf("it answers %s", response.Status)
}
