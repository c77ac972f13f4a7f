// Package cloudevents tests package cloudevents and rabbit.Marshaler with the official SDK for Go.
package cloudevents
