// The module kvpeer_region: mappings as SharedArrayBuffers. V8's own API, because Node 20's Node-API has no call for it.

#include <node.h>

#include <cmath>
#include <string>

#include "region/buffers.h"
#include "region/mappings.h"
#include "region/region_api.h"

namespace kvpeer {
namespace {

using v8::Context;
using v8::FunctionCallbackInfo;
using v8::Isolate;
using v8::Local;
using v8::Object;
using v8::String;
using v8::Value;

constexpr int kAddonVersion = 4;
constexpr size_t kMaxMapBytes = size_t{1} << 46;
constexpr int kMaxPathBytes = 4095;

Local<String> text(Isolate* isolate, const std::string& value) {
  return String::NewFromUtf8(isolate, value.data(), v8::NewStringType::kNormal, static_cast<int>(value.size()))
      .ToLocalChecked();
}

void throwTypeError(Isolate* isolate, const std::string& message) {
  isolate->ThrowException(v8::Exception::TypeError(text(isolate, message)));
}

void throwRangeError(Isolate* isolate, const std::string& message) {
  isolate->ThrowException(v8::Exception::RangeError(text(isolate, message)));
}

// A property of an options object; false with an exception pending when reading it threw.
bool property(Isolate* isolate, Local<Value> options, const char* name, Local<Value>* value) {
  if (!options->IsObject()) {
    throwTypeError(isolate, "the options must be an object");
    return false;
  }
  return options.As<Object>()->Get(isolate->GetCurrentContext(), text(isolate, name)).ToLocal(value);
}

bool booleanProperty(Isolate* isolate, Local<Value> options, const char* name, bool* value) {
  Local<Value> found;
  if (!property(isolate, options, name, &found)) return false;
  if (!found->IsBoolean()) {
    throwTypeError(isolate, std::string(name) + " must be a boolean");
    return false;
  }
  *value = found->BooleanValue(isolate);
  return true;
}

bool bytesProperty(Isolate* isolate, Local<Value> options, size_t* value) {
  Local<Value> found;
  if (!property(isolate, options, "bytes", &found)) return false;
  if (!found->IsNumber()) {
    throwTypeError(isolate, "bytes must be a number");
    return false;
  }
  const double number = found.As<v8::Number>()->Value();
  if (!(number >= 1 && number <= static_cast<double>(kMaxMapBytes)) || number != std::floor(number)) {
    throwRangeError(isolate, "bytes must be an integer from 1 to 2^46");
    return false;
  }
  *value = static_cast<size_t>(number);
  return true;
}

bool pathArgument(Isolate* isolate, Local<Value> argument, std::string* path) {
  if (!argument->IsString()) {
    throwTypeError(isolate, "the path must be a string");
    return false;
  }
  const String::Utf8Value value(isolate, argument);
  if (*value == nullptr || value.length() < 1 || value.length() > kMaxPathBytes) {
    throwRangeError(isolate, "the path must have 1 to 4095 bytes");
    return false;
  }
  path->assign(*value, static_cast<size_t>(value.length()));
  if (path->find('\0') != std::string::npos) {
    throwRangeError(isolate, "the path must not contain a zero byte");
    return false;
  }
  return true;
}

void set(Isolate* isolate, Local<Object> object, const char* name, Local<Value> value) {
  object->Set(isolate->GetCurrentContext(), text(isolate, name), value).Check();
}

// Runs on whichever thread drops the last reference, possibly without an isolate.
void unmapWithBuffer(void* base, size_t, void*) { releaseMapping(base); }

void returnMapping(const FunctionCallbackInfo<Value>& call, const MapRequest& request) {
  Isolate* isolate = call.GetIsolate();
  const MapResult result = createMapping(request);
  if (result.base == nullptr) {
    isolate->ThrowException(v8::Exception::Error(text(isolate, result.reason)));
    return;
  }
  std::unique_ptr<v8::BackingStore> store =
      v8::SharedArrayBuffer::NewBackingStore(result.base, result.bytes, unmapWithBuffer, nullptr);
  Local<Object> mapped = Object::New(isolate);
  set(isolate, mapped, "buffer", v8::SharedArrayBuffer::New(isolate, std::move(store)));
  set(isolate, mapped, "locked", v8::Boolean::New(isolate, result.locked));
  set(isolate, mapped, "hugeAdvised", v8::Boolean::New(isolate, result.hugeAdvised));
  set(isolate, mapped, "reason", text(isolate, result.reason));
  call.GetReturnValue().Set(mapped);
}

bool commonOptions(Isolate* isolate, Local<Value> options, MapRequest* request) {
  return bytesProperty(isolate, options, &request->bytes) &&
         booleanProperty(isolate, options, "huge", &request->huge) &&
         booleanProperty(isolate, options, "lock", &request->lock);
}

void mapAnonymous(const FunctionCallbackInfo<Value>& call) {
  MapRequest request;
  if (commonOptions(call.GetIsolate(), call[0], &request)) returnMapping(call, request);
}

void mapFile(const FunctionCallbackInfo<Value>& call) {
  Isolate* isolate = call.GetIsolate();
  MapRequest request;
  if (pathArgument(isolate, call[0], &request.path) && commonOptions(isolate, call[1], &request) &&
      booleanProperty(isolate, call[1], "create", &request.create)) {
    returnMapping(call, request);
  }
}

void holdBufferOf(const FunctionCallbackInfo<Value>& call) {
  Isolate* isolate = call.GetIsolate();
  if (!call[0]->IsUint8Array()) return throwTypeError(isolate, "the source must be a Uint8Array");
  const auto view = call[0].As<v8::Uint8Array>();
  std::shared_ptr<v8::BackingStore> store = view->Buffer()->GetBackingStore();
  if (store == nullptr || store->IsResizableByUserJavaScript()) {
    // Shrinking it would take pages away under a reader.
    return throwTypeError(isolate, "the source must not be on a resizable buffer");
  }
  const size_t offset = view->ByteOffset();
  const size_t bytes = view->ByteLength();
  if (offset > store->ByteLength() || bytes > store->ByteLength() - offset) {
    return throwRangeError(isolate, "the source was detached");
  }
  call.GetReturnValue().Set(static_cast<double>(holdBuffer(std::move(store), offset, bytes)));
}

void dropBufferOf(const FunctionCallbackInfo<Value>& call) {
  Isolate* isolate = call.GetIsolate();
  if (!call[0]->IsNumber()) return throwTypeError(isolate, "the token must be a number");
  const double token = call[0].As<v8::Number>()->Value();
  if (!(token >= 1 && token <= 9007199254740991.0) || token != std::floor(token) ||
      !dropBuffer(static_cast<uint64_t>(token))) {
    throwRangeError(isolate, "no buffer is held under this token");
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"), used)) const RegionApi kvpeer_region_api = {
    kRegionApiMagic, kRegionApiVersion, retainMapping, releaseMapping, borrowBuffer, giveBackBuffer};

NODE_MODULE_INIT() {
  Isolate* isolate = context->GetIsolate();
  NODE_SET_METHOD(exports, "mapAnonymous", mapAnonymous);
  NODE_SET_METHOD(exports, "mapFile", mapFile);
  NODE_SET_METHOD(exports, "holdBuffer", holdBufferOf);
  NODE_SET_METHOD(exports, "dropBuffer", dropBufferOf);
  const auto target = exports.As<Object>();
  set(isolate, target, "addonVersion", v8::Integer::New(isolate, kAddonVersion));
}

}  // namespace kvpeer
