package main

import (
	"net/url"
	"regexp"
	"strings"
)

var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// redact returns an error's text without the credentials that -db and -amqp
// hold: drivers like to quote them.
func (o options) redact(err error) string {
	text := err.Error()
	for _, secret := range []string{o.db, o.amqp} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
		if parsed, err := url.Parse(secret); err == nil && parsed.User != nil {
			if password, ok := parsed.User.Password(); ok && password != "" {
				text = strings.ReplaceAll(text, password, "***")
			}
		}
	}
	return userinfo.ReplaceAllString(text, "//***@")
}
