# A static binary on an empty base, for the machine of the build or for others: docker buildx build --platform linux/amd64,linux/arm64 .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /pod-resizer ./cmd/pod-resizer

FROM scratch
COPY --from=build /pod-resizer /pod-resizer
USER 65532:65532
ENTRYPOINT ["/pod-resizer"]
