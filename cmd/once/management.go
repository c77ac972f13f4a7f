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

// errAbsent is the answer of the management API about a name that does not exist.
var errAbsent = errors.New("not found")

// management is RabbitMQ's management API.
type management struct {
	base  *url.URL
	vhost string
}

// management returns the API of --management-url, or of the host of --amqp-url at the
// usual port.
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

// managementTimeout is how long the management API may take to answer.
const managementTimeout = 2 * time.Second

// get decodes the answer about a path. A name within the path is an element of its own.
func (m *management) get(ctx context.Context, to any, path ...string) error {
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
		return json.NewDecoder(response.Body).Decode(to)
	case http.StatusNotFound:
		return errAbsent
	}
	return fmt.Errorf("it answers %s", response.Status)
}
