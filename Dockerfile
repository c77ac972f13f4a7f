# The command line, ready to run a forwarder:
#
#   docker build --tag once --build-arg VERSION=v0.1.0 .
#   docker run --env ONCE_DSN --env ONCE_AMQP_URL --publish 9464:9464 once forward --listen :9464
FROM golang:1.26-alpine AS build
WORKDIR /src
# The modules are downloaded first, so that they stay in the cache when the source changes.
COPY go.mod go.sum ./
COPY cmd/once/go.mod cmd/once/go.sum ./cmd/once/
WORKDIR /src/cmd/once
ENV GOWORK=off CGO_ENABLED=0
RUN go mod download
COPY . /src
ARG VERSION=
RUN go build -trimpath -buildvcs=false -ldflags "-s -w -X main.release=${VERSION}" -o /once .

FROM scratch
# The certificates are for TLS connections to the database and the broker.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /once /once
# The user is a number, because scratch has no user names.
USER 65532:65532
EXPOSE 9464
ENTRYPOINT ["/once"]
CMD ["--help"]
