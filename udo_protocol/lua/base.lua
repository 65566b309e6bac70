#!lua name=udo
-- The deciding steps on a slot's log and state, each one atomic. Keys are described in keys.py; KEYS[1] is the slot's prefix. A server
-- loads one text: these files joined, this one first (slot.py, lua_source). Large payload never enters Lua: the caller's MULTI appends it
-- first and calls the deciding function after it in the same transaction; a refusal removes the payload again before anybody can see it.
-- Small payload is an argument instead: one command instead of four. Decision and write are one step on the server, so a fence holds at
-- any pipelining depth. Each redis.call costs about 2 µs.

local function num(key, default) return tonumber(redis.call('GET', key) or default) end

local function num_of(key, field) return tonumber(redis.call('HGET', key, field) or 0) end

-- nil if the key is of another type. For keys that others may write, too: they must not be able to stop the owner.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return nil end
  return reply
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
