package main

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/lib/pq"
)

var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// redact returns the text of an error without the credentials in -db, -payments-db and
// -amqp. A driver may quote them.
func (o options) redact(err error) string {
	text := err.Error()
	for _, secret := range append([]string{o.db, o.paymentsDB, o.amqp}, o.passwords()...) {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return userinfo.ReplaceAllString(text, "//***@")
}

// passwords returns the passwords in -db, -payments-db and -amqp, both as plain text and
// as they are written in a URL.
func (o options) passwords() []string {
	var all []string
	for _, dsn := range []string{o.db, o.paymentsDB} {
		if config, err := pq.NewConfig(dsn); err == nil {
			all = append(all, config.Password, url.QueryEscape(config.Password))
		}
	}
	for _, address := range []string{o.db, o.paymentsDB, o.amqp} {
		if parsed, err := url.Parse(address); err == nil {
			password, _ := parsed.User.Password()
			_, written, _ := strings.Cut(parsed.User.String(), ":")
			all = append(all, written, password, url.QueryEscape(password))
		}
	}
	return all
}
