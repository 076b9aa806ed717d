// Strict reading of Node-API arguments: a wrong number or type from JavaScript throws, it is never coerced.
#pragma once

#include <node_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvpeer {

// Throws a JavaScript Error with this message (unless one is pending already) and returns nullptr, the value that a
// native function returns while an exception is pending.
inline napi_value throwError(napi_env env, const std::string& message,
                             const char* code = "KVPEER_INVALID_ARGUMENT") {
  bool isPending = false;
  napi_is_exception_pending(env, &isPending);
  if (!isPending) napi_throw_error(env, code, message.c_str());
  return nullptr;
}

inline void throwTypeError(napi_env env, const std::string& message) {
  bool isPending = false;
  napi_is_exception_pending(env, &isPending);
  if (!isPending) napi_throw_type_error(env, "KVPEER_INVALID_ARGUMENT", message.c_str());
}

inline void throwRangeError(napi_env env, const std::string& message) {
  bool isPending = false;
  napi_is_exception_pending(env, &isPending);
  if (!isPending) napi_throw_range_error(env, "KVPEER_INVALID_ARGUMENT", message.c_str());
}

// The arguments of one call. `ok` turns false at the first wrong one, and an exception is pending then.
template <size_t Count>
class Arguments {
 public:
  Arguments(napi_env env, napi_callback_info info, const char* functionName)
      : env_(env), functionName_(functionName) {
    size_t given = Count;
    if (napi_get_cb_info(env, info, &given, values_, nullptr, &data_) != napi_ok || given < Count) {
      failType("takes " + std::to_string(Count) + " arguments");
    }
  }

  bool ok() const { return ok_; }
  void* data() const { return data_; }
  napi_value value(size_t index) const { return values_[index]; }

  void fail(const std::string& reason) {
    if (ok_) throwError(env_, std::string(functionName_) + ": " + reason);
    ok_ = false;
  }

  // The argument has the wrong type, or is a number that cannot be.
  void failType(const std::string& reason) {
    if (ok_) throwTypeError(env_, std::string(functionName_) + ": " + reason);
    ok_ = false;
  }
  void failRange(const std::string& reason) {
    if (ok_) throwRangeError(env_, std::string(functionName_) + ": " + reason);
    ok_ = false;
  }

  // A whole number in minimum .. maximum (at most 2^53 - 1).
  uint64_t integer(size_t index, const char* name, uint64_t minimum, uint64_t maximum) {
    if (!ok_) return minimum;
    double number = 0;
    if (!readNumber(index, name, &number)) return minimum;
    if (!std::isfinite(number) || number != std::floor(number) || number < static_cast<double>(minimum) ||
        number > static_cast<double>(maximum)) {
      failRange(std::string(name) + " must be a whole number from " + std::to_string(minimum) + " to " +
                std::to_string(maximum));
      return minimum;
    }
    return static_cast<uint64_t>(number);
  }

  // The same, where -1 has a meaning of its own.
  int64_t integerOrMinusOne(size_t index, const char* name, uint64_t maximum) {
    double number = 0;
    if (!ok_ || !readNumber(index, name, &number)) return -1;
    return number == -1 ? -1 : static_cast<int64_t>(integer(index, name, 0, maximum));
  }

  uint32_t uint32(size_t index, const char* name) {
    return static_cast<uint32_t>(integer(index, name, 0, UINT32_MAX));
  }

  bool boolean(size_t index, const char* name) {
    bool value = false;
    if (ok_ && napi_get_value_bool(env_, values_[index], &value) != napi_ok) {
      failType(std::string(name) + " must be a boolean");
    }
    return value;
  }

  std::string string(size_t index, const char* name, size_t maximumBytes) {
    size_t length = 0;
    if (!ok_) return {};
    if (napi_get_value_string_utf8(env_, values_[index], nullptr, 0, &length) != napi_ok || length > maximumBytes) {
      failType(std::string(name) + " must be a string of at most " + std::to_string(maximumBytes) + " bytes");
      return {};
    }
    std::string text(length, '\0');
    napi_get_value_string_utf8(env_, values_[index], text.data(), length + 1, &length);
    return text;
  }

  // The memory of a typed array of this element type; `length` in elements. Borrowed for the call.
  void* typedArray(size_t index, const char* name, napi_typedarray_type type, size_t* length) {
    if (!ok_) return nullptr;
    bool isTypedArray = false;
    napi_is_typedarray(env_, values_[index], &isTypedArray);
    napi_typedarray_type actual = napi_uint8_array;
    void* data = nullptr;
    if (!isTypedArray ||
        napi_get_typedarray_info(env_, values_[index], &actual, length, &data, nullptr, nullptr) != napi_ok ||
        actual != type) {
      failType(std::string(name) + " is not a typed array of the expected kind");
      return nullptr;
    }
    return data;
  }

 private:
  bool readNumber(size_t index, const char* name, double* number) {
    if (napi_get_value_double(env_, values_[index], number) == napi_ok) return true;
    failType(std::string(name) + " must be a number");
    return false;
  }

  napi_env env_;
  const char* functionName_;
  napi_value values_[Count == 0 ? 1 : Count] = {};
  void* data_ = nullptr;
  bool ok_ = true;
};

inline napi_value toNumber(napi_env env, double number) {
  napi_value value = nullptr;
  napi_create_double(env, number, &value);
  return value;
}

inline napi_value toBoolean(napi_env env, bool value) {
  napi_value result = nullptr;
  napi_get_boolean(env, value, &result);
  return result;
}

inline napi_value toText(napi_env env, const std::string& text) {
  napi_value value = nullptr;
  napi_create_string_utf8(env, text.data(), text.size(), &value);
  return value;
}

inline void setProperty(napi_env env, napi_value object, const char* name, napi_value value) {
  napi_set_named_property(env, object, name, value);
}

inline void exportFunction(napi_env env, napi_value exports, const char* name, napi_callback callback) {
  napi_value function = nullptr;
  if (napi_create_function(env, name, NAPI_AUTO_LENGTH, callback, nullptr, &function) == napi_ok) {
    napi_set_named_property(env, exports, name, function);
  }
}

}  // namespace kvpeer
