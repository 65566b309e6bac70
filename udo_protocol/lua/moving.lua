-- State server: key groups move to another slot (moving.py). They leave the state of the source in the step of a checkpoint, wait as
-- `savepoint:moved-{version}`, are delivered to the target as `savepoint:adopted-{version}`, and become part of its state in the step of a
-- checkpoint there. Each step moves all of it: manifests and pieces of the groups, dead letters, the sessions' records, and copies of the
-- event times, which both slots need.
local MOVED, ADOPTED, GROUPS_MOVED = 'moved-', 'adopted-', -3
local NEVER = 253402300799000 -- the end of the year 9999, in ms
local LETTER_OF_GROUP = '^k|.*|%-?%d+|(%-?%d+)|%-?%d+|%-?%d+|%-?%d+|%-?%d+$'

local function of_event_time(n) return n:sub(1, 1) == '-' end

-- Copy the piece's values, as far as the manifest counts them, to another name; returns the entry for the copy.
local function copy_piece(p, entry, new)
  local piece, changes = entry:match('^(%S+) (%d+) ')
  local base = redis.call('GET', p .. 'g:' .. piece)
  if base then redis.call('SET', p .. 'g:' .. new, base) end
  if changes ~= '0' then
    for _, change in ipairs(redis.call('LRANGE', p .. 'd:' .. piece, 0, changes - 1)) do redis.call('RPUSH', p .. 'd:' .. new, change) end
  end
  return new .. entry:sub(#piece + 1)
end

-- Called after all other commands of the checkpoint that covers the cut. Tells the node manager, whose `deliver` may follow at once, before
-- the disk is synced for both. ARGV: version, groups.
local function hand_over(keys, a)
  local p, wanted = keys[1], {}
  local at = of_savepoint(p, MOVED .. a[1])
  for i = 2, #a do wanted[a[i]] = true end
  for _, s in ipairs(redis.call('HKEYS', p .. 'sessions')) do
    redis.call('HSET', at .. ':sessions', s, redis.call('HGET', p .. 'sessions', s))
    local flat = redis.call('HGETALL', p .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local n, entry = flat[i], flat[i + 1]
      if wanted[n] then
        redis.call('HSET', at .. ':m:' .. s, n, entry)
        redis.call('HDEL', p .. 'm:' .. s, n)
      elseif of_event_time(n) then
        redis.call('HSET', at .. ':m:' .. s, n, copy_piece(p, entry, piece_of(entry) .. '@' .. a[1]))
      end
    end
  end
  for _, kind in ipairs(LETTERS) do
    for _, name in ipairs(redis.call('HKEYS', p .. kind)) do
      if wanted[name:match(LETTER_OF_GROUP)] then
        redis.call('HSET', at .. ':' .. kind, name, redis.call('HGET', p .. kind, name))
        redis.call('HDEL', p .. kind, name)
      end
    end
  end
  redis.call('HSET', at, 'info', a[1])
  note(p, MOVED .. a[1], GIVEN_UP, NEVER, 0) -- keeps the pieces when another savepoint ends
  load_again(p, GROUPS_MOVED)
  redis.call('DEL', at .. ':told')
  redis.call('RPUSH', at .. ':told', 1)
  redis.call('PEXPIRE', at .. ':told', 60000)
  return 1
end

-- Deliver what was handed over, and put the group map in force; called by the node manager, which may write both slots' keys. Pieces
-- that a savepoint names are copied, others are renamed. ARGV: prefix of the other slot, version, key of the map, the map.
local function deliver(keys, a)
  local p, to, version = keys[1], a[1], a[2]
  local from, at, found = of_savepoint(p, MOVED .. version), of_savepoint(to, ADOPTED .. version), savepoints(p)
  if redis.call('EXISTS', from) == 0 then return 0 end
  for _, s in ipairs(redis.call('HKEYS', from .. ':sessions')) do
    local flat = redis.call('HGETALL', from .. ':m:' .. s)
    for i = 1, #flat, 2 do
      local n, entry = flat[i], flat[i + 1]
      local piece = piece_of(entry)
      local new, how = 'v' .. version .. '.' .. piece, pinned(p, s, n, piece, found, MOVED .. version) and 'COPY' or 'RENAME'
      for _, kind in ipairs({'g:', 'd:'}) do
        if redis.call('EXISTS', p .. kind .. piece) == 1 then redis.call(how, p .. kind .. piece, to .. kind .. new) end
      end
      redis.call('HSET', at .. ':m:' .. s, n, new .. entry:sub(#piece + 1))
    end
    redis.call('UNLINK', from .. ':m:' .. s)
  end
  move(from .. ':sessions', at .. ':sessions')
  for _, kind in ipairs(LETTERS) do move(from .. ':' .. kind, at .. ':' .. kind) end
  redis.call('RENAME', from, at)
  redis.call('UNLINK', from .. ':told')
  redis.call('HDEL', p .. 'savepoints', MOVED .. version)
  redis.call('SET', a[3], a[4])
  return 1
end

-- Remove what was handed over to a slot of another node, which has it now, except pieces that a savepoint names. ARGV: version.
local function handed_on(keys, a)
  local p, name, found = keys[1], MOVED .. a[1], savepoints(keys[1])
  local at = of_savepoint(p, name)
  for _, s in ipairs(redis.call('HKEYS', at .. ':sessions')) do
    local flat = redis.call('HGETALL', at .. ':m:' .. s)
    for i = 1, #flat, 2 do
      local piece = piece_of(flat[i + 1])
      if not pinned(p, s, flat[i], piece, found, name) then remove_piece(p, piece) end
    end
    redis.call('UNLINK', at .. ':m:' .. s)
  end
  for _, kind in ipairs(LETTERS) do redis.call('UNLINK', at .. ':' .. kind) end
  redis.call('UNLINK', at, at .. ':sessions', at .. ':told')
  redis.call('HDEL', p .. 'savepoints', name)
  return 1
end

-- Deliver what a slot of another node has handed over from its copy at `taking:{copy}:*` to this slot, like `deliver`. Once for each
-- version: 0 if that was done before. -1 if the copy is incomplete: not all of its keys were written, or some have expired since.
-- ARGV: copy, version.
local function take(keys, a)
  local p, staged, version = keys[1], keys[1] .. 'taking:' .. a[1] .. ':', a[2]
  local at, entries = of_savepoint(p, ADOPTED .. version), {}
  if num(p .. 'taken', 0) >= tonumber(version) then return 0 end
  local names = redis.call('LRANGE', staged .. 'all', 0, -1)
  if not names[1] then return -1 end
  for i = 2, #names do
    if redis.call('EXISTS', staged .. names[i]) == 0 then return -1 end
  end
  local function keep(from, to)
    if redis.call('EXISTS', from) == 1 then
      redis.call('RENAME', from, to)
      redis.call('PERSIST', to)
    end
  end
  for _, s in ipairs(redis.call('HKEYS', staged .. 'sessions')) do
    local flat = redis.call('HGETALL', staged .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local piece, changes, base = flat[i + 1]:match('^(%S+) (%d+) (%d+) ')
      local short = redis.call('STRLEN', staged .. 'g:' .. piece) ~= tonumber(base)
      if short or redis.call('LLEN', staged .. 'd:' .. piece) < tonumber(changes) then return -1 end
      entries[#entries + 1] = {s, flat[i], piece, flat[i + 1]:sub(#piece + 1)}
    end
  end
  for _, e in ipairs(entries) do
    local new = 'v' .. version .. '.' .. e[3]
    for _, kind in ipairs({'g:', 'd:'}) do keep(staged .. kind .. e[3], p .. kind .. new) end
    redis.call('HSET', at .. ':m:' .. e[1], e[2], new .. e[4])
    redis.call('HDEL', staged .. 'm:' .. e[1], e[2])
  end
  keep(staged .. 'sessions', at .. ':sessions')
  for _, kind in ipairs(LETTERS) do keep(staged .. kind, at .. ':' .. kind) end
  redis.call('UNLINK', staged .. 'all', staged .. 'begun')
  redis.call('HSET', at, 'info', version, 'copy', a[1])
  redis.call('SET', p .. 'taken', version)
  return 1
end

-- Called after all other commands of the adopting slot's checkpoint, whose own session records and event times stay, as do groups that
-- the checkpoint has just written, in another form or with further changes to the same piece. ARGV: version.
local function take_in(keys, a)
  local p = keys[1]
  local at = of_savepoint(p, ADOPTED .. a[1])
  for _, s in ipairs(redis.call('HKEYS', at .. ':sessions')) do
    if redis.call('HEXISTS', p .. 'sessions', s) == 0 then
      redis.call('HSET', p .. 'sessions', s, redis.call('HGET', at .. ':sessions', s))
    end
    local flat = redis.call('HGETALL', at .. ':m:' .. s)
    for i = 1, #flat, 2 do
      local have = redis.call('HGET', p .. 'm:' .. s, flat[i])
      if not have then
        redis.call('HSET', p .. 'm:' .. s, flat[i], flat[i + 1])
      elseif piece_of(have) ~= piece_of(flat[i + 1]) then
        remove_piece(p, piece_of(flat[i + 1]))
      end
    end
    redis.call('UNLINK', at .. ':m:' .. s)
  end
  for _, kind in ipairs(LETTERS) do
    local flat = redis.call('HGETALL', at .. ':' .. kind)
    for i = 1, #flat, 2 do redis.call('HSET', p .. kind, flat[i], flat[i + 1]) end
    redis.call('UNLINK', at .. ':' .. kind)
  end
  redis.call('UNLINK', at, at .. ':sessions')
  load_again(p, GROUPS_MOVED)
  return 1
end

redis.register_function('udo_hand_over', hand_over)
redis.register_function('udo_deliver', deliver)
redis.register_function('udo_take_in', take_in)
redis.register_function('udo_handed_on', handed_on)
redis.register_function('udo_take', take)
